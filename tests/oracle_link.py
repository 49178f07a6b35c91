"""The link of the slow price: a list of batches with what is left of each, and what waits before it.

What is under way, chains too, is advanced from one event to the next.
"""

import math

from oracle_chains import Batch

INF = math.inf


class SlowLink:
    """Half of a `PriceOracle`, which makes what stands on `self` here."""

    def landed(self, key):
        return key not in self.copies or (self.copies[key] is not None and self.copies[key].left <= 0)

    def hand_over(self, events, keys, layer, kind, outside=0, warm=0):
        """The host starts one batch."""
        rows = len(keys) + outside
        self.host += self.m["submit_batch_s"] + rows * self.m["submit_load_s"]
        seconds = self.m[f"copy_{kind}_batch_s"] + rows * self.m[f"copy_{kind}_row_s"]
        seconds += (rows - warm) * self.rows[layer] / self.m[f"copy_{kind}_bytes_per_s"]
        seconds += warm * self.rows[layer] / self.m["copy_computed_bytes_per_s"]
        batch = Batch(seconds, rows * self.rows[layer])
        events.append((self.host, batch))
        for key in keys:
            self.waiting = [(k, number) for k, number in self.waiting if k != key]
            self.copies[key] = batch
        return batch

    def fits(self, n_bytes):
        there = sum(batch.n_bytes for batch in self.driver if batch.left > 0)
        return there == 0 or there + n_bytes <= self.max_queued

    def pump(self, events):
        while self.waiting:
            number = self.waiting[0][1]
            keys = [key for key, its in self.waiting if its == number]
            layer = keys[0][0]
            if not self.fits(len(keys) * self.rows[layer]):
                return
            self.driver.append(self.hand_over(events, keys, layer, "ahead"))

    def look_ahead(self, events, layer, predicted):
        self.host += self.policy_ahead_s
        keys = [(layer, load.expert) for load in self.pool.prefetch(layer, predicted).loads if load.speculative]
        size = self.chunk or max(1, len(keys))
        for first in range(0, len(keys), size):
            some = keys[first : first + size]
            self.waiting = [(key, number) for key, number in self.waiting if key not in some]
            if self.max_queued == INF or (not self.waiting and self.fits(len(some) * self.rows[layer])):
                self.driver.append(self.hand_over(events, some, layer, "ahead"))
            else:
                self.number = getattr(self, "number", 0) + 1
                self.waiting += [(key, self.number) for key in some]
                self.copies |= dict.fromkeys(some)

    def idle(self, until):
        """The link goes on while no chain works."""
        self.advance(None, [], [(until, None)], count=False)

    def advance(self, cold, hot, events, *, count=True, hits=None):
        """From event to event until the jobs are done. Returns for how long the hits alone waited for their copies."""
        waited, hot, events = 0.0, list(hot), list(events)
        while hot or events or (cold and cold.left > 0):
            self.link = [batch for batch in self.link if batch.left > 0]
            job = hot[0] if hot else None
            cold_on = bool(cold and cold.left > 0 and self.now >= cold.at)
            gated = bool(job and job.gated())
            hot_on = bool(job and not gated and self.now >= job.at)
            busy = bool(self.link)
            link_rate = self.contention.link_with_cold.value if cold_on else 1.0
            cold_rate = self.contention.cold_with_link.value if busy else 1.0
            hot_rate = self.contention.hot_with_link.value if busy else 1.0
            cold_rate *= self.cold_share if hot_on else 1.0
            hot_rate *= self.hot_share if cold_on else 1.0
            times = [time for time, _ in events[:1]]
            times += [cold.at] if cold and cold.left > 0 and not cold_on else []
            times += [job.at] if job and self.now < job.at else []
            spans = [max(0.0, time - self.now) for time in times]
            spans += [self.link[0].left / link_rate] if busy else []
            spans += [cold.left / cold_rate] if cold_on else []
            spans += [job.left / hot_rate] if hot_on else []
            span = min(spans)

            def less(left, rate, span=span):
                return 0.0 if left / rate <= span else left - span * rate

            if busy:
                self.link[0].left = less(self.link[0].left, link_rate)
                self.link_busy += span
            if cold_on:
                cold.left = less(cold.left, cold_rate)
                self.cold_busy += span
            if hot_on:
                job.left = less(job.left, hot_rate)
            late = gated and self.now >= job.at
            if count:
                what = "both_s" if cold_on and hot_on else "cold_alone_s" if cold_on else "hot_alone_s"
                what = what if cold_on or hot_on else "late_s" if late else "host_s"
                self.parts[what] += span
            waited += span if late and job is hits else 0.0
            reached = [time for time in times if max(0.0, time - self.now) == span]
            self.now = max(self.now, *reached) if reached else self.now + span
            if cold_on and cold.left <= 0:
                cold.ended = self.now
            if hot_on and job.left <= 0:
                hot.pop(0).ended = self.now
            if events and self.now >= events[0][0]:
                _, batch = events.pop(0)
                self.link += [batch] if batch else []
        return waited
