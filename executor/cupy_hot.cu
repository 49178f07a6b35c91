// The hot chain: the expert FFNs that hit, computed on the GPU from the bytes of their slots, in two launches.
//
// `gate_up_T` writes activated(gate x, up x) of every (row, token) pair, `down_T` the pair's own row of the output.
// Nothing is summed over pairs and nothing is atomic. One source for every layout: cupy_hot.py puts HIDDEN, INNER,
// the dtypes and the places of the parts in front of it, and one line CHAIN(...) for each T, the most tokens of a
// row, behind.
//
// What waits for what. A warp owns a ring of DEPTH stages in shared memory and keeps all of them on their way with
// cp.async, 16 bytes a lane; it waits only for its oldest stage. `down` is launched with programmatic dependence:
// `gate_up` lets it in at once, it fills its rings with weights, which no kernel writes, and waits
// (griddepcontrol.wait) for the whole of `gate_up` before it reads activations. Every block of every kernel here
// passes that wait, so a kernel that has ended means that all kernels before it in the stream have.
//
// What identities I1 and I2 rest on. One output of one token is one chain of fused multiply-adds per lane, in the
// order of the weights, and then one butterfly over the lanes. Which warp does it, from which slot, beside which
// other outputs and tokens, and in how many slices, changes no operand and no order. Compiled with --fmad=false: what
// is fused says fmaf.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

enum { F32, F16, BF16, Q8_0, Q4_0, MXFP4, Q4_K, Q6_K };  // the codes of dtypes.py
enum { SWIGLU, GEGLU, SWIGLU_CLAMPED };
#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")

// One launch. Everything that differs from tick to tick lies here, in the constant bank of the kernel's arguments.
struct Work {
  const u8 *slots;
  u64 slot_bytes;
  const float *x;  // [n, HIDDEN]
  float *act;      // [MAX_PAIRS, INNER], between the two launches
  float *out;      // [*, HIDDEN]
  float alpha, limit;
  u32 kind, rows;
  u32 slot[MAX_ROWS];
  u16 first[MAX_ROWS + 2];  // row r computes the pairs first[r] .. first[r + 1] - 1, at most T of them
  u16 token[MAX_PAIRS];     // of a pair: its row of x
  u16 to[MAX_PAIRS];        // of a pair: its row of out
};

DEVICE void next_may_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
DEVICE u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
DEVICE void copy16(u32 to, const u8 *from) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
DEVICE void copies_end() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void wait_for_all_but() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
// Past L1: what the kernel before has written may be newer than a line of L1.
DEVICE float4 load_fresh(const float4 *p) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
DEVICE float as_float(u32 bits) { return __uint_as_float(bits); }
DEVICE float half_at(const u8 *p) {
  float v;
  asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(*(const u16 *)p));
  return v;
}
// The word at base + at, where base is a multiple of 4: two aligned words, shifted together.
DEVICE u32 word_at(const u8 *base, u32 at) {
  const u32 over = at & 3, *words = (const u32 *)(base + (at - over));
  return __funnelshift_r(words[0], words[1], 8 * over);
}
DEVICE void halves(u32 two, float &first, float &second) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(first), "=f"(second)
      : "r"(two));
}
// Byte i of four small codes as the float 128 + code (codes below 128): exact, one instruction, no integer
// conversion.
DEVICE float plus128(u32 codes, int i) { return as_float(__byte_perm(codes, 0x43000000, 0x7044 | i << 8)); }
// The same as 32768 + code, for codes to 255.
DEVICE float plus32768(u32 codes, int i) { return as_float(__byte_perm(codes, 0x47000000, 0x7404 | i << 4)); }

// How a dtype is read. A lane takes a granule of G weights, and 32 of them are a step. `load` brings what the lane
// needs of one output row into registers: the step begins `skip` bytes behind `base`, which is a multiple of 4.
// `quad` makes four weights of it, at(lane, j) says which four inputs of the step they meet. SWIZZLE is the pattern
// that keeps the lanes' reads of inputs free of bank conflicts. What depends on the lane only is the same in every
// step: the compiler keeps it.
template <int D> struct Dtype;

template <> struct Dtype<F32> {
  enum { BLOCK = 1, BYTES = 4, G = 4, SWIZZLE = 0, WHOLE = 16 };
  float4 v;
  DEVICE void load(const u8 *base, u32, u32 lane) { v = ((const float4 *)base)[lane]; }
  DEVICE void quad(int, float w[4]) const { w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w; }
  static DEVICE u32 at(u32 lane, int) { return lane; }
};

template <> struct Dtype<F16> {
  enum { BLOCK = 1, BYTES = 2, G = 8, SWIZZLE = 1, WHOLE = 16 };
  uint4 v;
  DEVICE void load(const u8 *base, u32, u32 lane) { v = ((const uint4 *)base)[lane]; }
  DEVICE void quad(int j, float w[4]) const {
    const u32 a = j ? v.z : v.x, b = j ? v.w : v.y;
    halves(a, w[0], w[1]), halves(b, w[2], w[3]);
  }
  static DEVICE u32 at(u32 lane, int j) { return 2 * lane + j; }
};

template <> struct Dtype<BF16> {
  enum { BLOCK = 1, BYTES = 2, G = 8, SWIZZLE = 1, WHOLE = 16 };
  uint4 v;
  DEVICE void load(const u8 *base, u32, u32 lane) { v = ((const uint4 *)base)[lane]; }
  DEVICE void quad(int j, float w[4]) const {
    const u32 a = j ? v.z : v.x, b = j ? v.w : v.y;
    w[0] = as_float(a << 16), w[1] = as_float(a & 0xffff0000u);
    w[2] = as_float(b << 16), w[3] = as_float(b & 0xffff0000u);
  }
  static DEVICE u32 at(u32 lane, int j) { return 2 * lane + j; }
};

// d has 11 bits and 32768 + 128 nine, so their product is exact and one multiply-add gives d * q rounded once:
// exactly.
template <> struct Dtype<Q8_0> {
  enum { BLOCK = 32, BYTES = 34, G = 8, SWIZZLE = 1, WHOLE = 2 };
  u32 q[2];
  float d, c;
  DEVICE void load(const u8 *base, u32 skip, u32 lane) {
    const u32 block = skip + (lane >> 2) * 34, at = block + 2 + (lane & 3) * 8, over = at & 2;
    const u32 *words = (const u32 *)(base + (at - over)), middle = words[1];
    q[0] = __funnelshift_r(words[0], middle, 8 * over) ^ 0x80808080u;
    q[1] = __funnelshift_r(middle, words[2], 8 * over) ^ 0x80808080u;
    d = half_at(base + block), c = -32896.0f * d;
  }
  DEVICE void quad(int j, float w[4]) const {
    UNROLL for (int i = 0; i < 4; i++) w[i] = fmaf(d, plus32768(q[j], i), c);
  }
  static DEVICE u32 at(u32 lane, int j) { return 2 * lane + j; }
};

template <> struct Dtype<Q4_0> {
  enum { BLOCK = 32, BYTES = 18, G = 8, SWIZZLE = 2, WHOLE = 2 };
  u32 q;
  float d, c;
  DEVICE void load(const u8 *base, u32 skip, u32 lane) {
    const u32 block = skip + (lane >> 2) * 18;
    q = word_at(base, block + 2 + (lane & 3) * 4), d = half_at(base + block), c = -136.0f * d;
  }
  DEVICE void quad(int j, float w[4]) const {
    const u32 codes = q >> 4 * j & 0x0f0f0f0fu;
    UNROLL for (int i = 0; i < 4; i++) w[i] = fmaf(d, plus128(codes, i), c);
  }
  static DEVICE u32 at(u32 lane, int j) { return (lane >> 2) * 8 + (lane & 3) + 4 * j; }
};

// Magnitudes, doubled, come out of a table of eight bytes, and a mask of the signs makes 16 + q of them. From there
// it is as Q4_0, exact for scales below 2^120.
template <> struct Dtype<MXFP4> {
  enum { BLOCK = 32, BYTES = 17, G = 8, SWIZZLE = 2, WHOLE = 1 };
  u32 q[2];
  float d, c;
  // prmt itself: __byte_perm drops the bit that asks for a byte's sign, eight times.
  static DEVICE u32 signs(u32 low, u32 high, u32 which) {
    u32 mask;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(mask) : "r"(low), "r"(high), "r"(which));
    return mask;
  }
  static DEVICE u32 plus16(u32 magnitudes, u32 mask) {
    return (magnitudes ^ (mask & 0x1f1f1f1fu) ^ 0x10101010u) + (mask & 0x01010101u);
  }
  DEVICE void load(const u8 *base, u32 skip, u32 lane) {
    const u32 block = skip + (lane >> 2) * 17;
    const u32 codes = word_at(base, block + 1 + (lane & 3) * 4), e = base[block], low = codes << 4;
    q[0] = plus16(__byte_perm(0x03020100, 0x0c080604, codes & 0x7777), signs(low, codes, 0xd9c8));
    q[1] = plus16(__byte_perm(0x03020100, 0x0c080604, codes >> 16 & 0x7777), signs(low, codes, 0xfbea));
    d = as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);  // half of 2^(e - 127)
    c = -144.0f * d;
  }
  // Bytes of q: weights 0, 16, 1, 17 and 2, 18, 3, 19 of the granule's word.
  DEVICE void quad(int j, float w[4]) const {
    UNROLL for (int i = 0; i < 4; i++) w[i] = fmaf(d, plus128(q[i >> 1], 2 * (i & 1) + j), c);
  }
  static DEVICE u32 at(u32 lane, int j) { return (lane >> 2) * 8 + (lane & 3) + 4 * j; }
};

// w = ds * (128 + q) + c. Here c is rounded, by at most 2^-18 of a step ds.
template <> struct Dtype<Q4_K> {
  enum { BLOCK = 256, BYTES = 144, G = 32, SWIZZLE = 3, WHOLE = 16 };
  u32 q[4];
  float ds[2], c[2];
  DEVICE void load(const u8 *base, u32, u32 lane) {
    const u8 *block = base + (lane >> 3) * 144;
    const u32 part = lane & 7, two = part & 2;  // of this granule's two groups of 32, the first one's place among four
    const uint4 v = *(const uint4 *)(block + 16 + 16 * part);
    q[0] = v.x, q[1] = v.y, q[2] = v.z, q[3] = v.w;
    const u8 *packed = block + 4 + two;
    const u32 a = *(const u16 *)packed, b = *(const u16 *)(packed + 4), later = *(const u16 *)(packed + 8);
    const u32 scales = part < 4 ? a & 0x3f3f : (later & 0x0f0f) | (a >> 2 & 0x3030);
    const u32 minima = part < 4 ? b & 0x3f3f : (later >> 4 & 0x0f0f) | (b >> 2 & 0x3030);
    float d, d_min;
    halves(*(const u32 *)block, d, d_min);
    UNROLL for (int i = 0; i < 2; i++) {
      ds[i] = d * (plus128(scales, i) - 128.0f);
      c[i] = fmaf(-128.0f, ds[i], -(d_min * (plus128(minima, i) - 128.0f)));
    }
  }
  DEVICE void quad(int j, float w[4]) const {
    const int high = j >> 2;
    const u32 codes = q[j & 3] >> 4 * high & 0x0f0f0f0fu;
    UNROLL for (int i = 0; i < 4; i++) w[i] = fmaf(ds[high], plus128(codes, i), c[high]);
  }
  static DEVICE u32 at(u32 lane, int j) {
    return (lane >> 3) * 64 + (lane >> 1 & 3) * 16 + (lane & 1) * 4 + (j >> 2) * 8 + (j & 3);
  }
};

template <> struct Dtype<Q6_K> {
  enum { BLOCK = 256, BYTES = 210, G = 16, SWIZZLE = 0, WHOLE = 2 };
  u32 low[2], high;
  float ds[4];
  DEVICE void load(const u8 *base, u32 skip, u32 lane) {
    const u32 block = skip + (lane >> 4) * 210, part = lane >> 3 & 1, l = 4 * (lane & 7);
    low[0] = word_at(base, block + 64 * part + l), low[1] = word_at(base, block + 64 * part + 32 + l);
    high = word_at(base, block + 128 + 32 * part + l);
    const float d = half_at(base + block + 208);
    const u8 *scales = base + block + 192 + 8 * part + (l >> 4);
    UNROLL for (int j = 0; j < 4; j++) ds[j] = d * (plus32768(scales[2 * j] ^ 0x80u, 0) - 32896.0f);
  }
  DEVICE void quad(int j, float w[4]) const {
    const u32 bits = (j == 0 ? high << 4 : j == 1 ? high << 2 : j == 2 ? high : high >> 2) & 0x30303030u;
    const u32 codes = (low[j & 1] >> 4 * (j >> 1) & 0x0f0f0f0fu) | bits;
    const float c = -160.0f * ds[j];
    UNROLL for (int i = 0; i < 4; i++) w[i] = fmaf(ds[j], plus128(codes, i), c);
  }
  static DEVICE u32 at(u32 lane, int j) { return (lane >> 4) * 64 + (lane >> 3 & 1) * 32 + (lane & 7) + 8 * j; }
};

template <int PATTERN> DEVICE u32 swizzled(u32 q) {
  if (PATTERN == 1) return q ^ (q >> 3 & 1);
  if (PATTERN == 2) return q ^ (q >> 3 & 1) << 2;
  if (PATTERN == 3) return q ^ (q >> 4 & 3);
  return q;
}

// One matrix of a row, [*, K] weights from byte AT: its output rows are read in slices of KS weights.
template <int D, int K, int KS, int AT> struct Part {
  typedef Dtype<D> Of;
  enum {
    STRIDE = K / Of::BLOCK * Of::BYTES,
    SLICE = (KS < K ? KS : K) / Of::BLOCK * Of::BYTES,
    SAME = KS >= K || K % KS == 0,  // the last slice is as long as the others
    ALIGNED = STRIDE % 16 == 0 && SLICE % 16 == 0 && AT % 16 == 0,
    PITCH = ALIGNED ? SLICE : (SLICE + 15 + 15) / 16 * 16,  // the 16-byte pieces that hold a slice, wherever it begins
  };
  static_assert(K % Of::BLOCK == 0 && K % 4 == 0, "whole blocks");
  static_assert(KS >= K || KS % (32 * Of::G) == 0, "slices of whole steps");
  static_assert(AT % Of::WHOLE == 0 && STRIDE % Of::WHOLE == 0, "aligned as the dtype is read");

  // Sends slice s of output rows o .. o + R - 1 on its way.
  template <int R> static DEVICE void fetch(const u8 *row, u32 o, u32 s, u32 stage, u32 lane) {
    UNROLL for (int r = 0; r < R; r++) {
      const u32 begin = AT + (o + r) * STRIDE + s * SLICE;
      const u32 bytes = !SAME && s == K / KS ? STRIDE - s * SLICE : SLICE;
      const u32 skip = ALIGNED ? 0 : begin & 15;
      const u8 *from = row + (begin - skip) + 16 * lane;
      UNROLL for (int i = 0; i < PITCH; i += 512)
        if ((ALIGNED && SAME && i + 512 <= SLICE) || i + 16 * lane < bytes + skip)
          copy16(stage + r * PITCH + i + 16 * lane, from + i);
    }
  }

  // Adds slice s of R output rows times T tokens to the sums [R, T].
  template <int PATTERN, int R, int T>
  static DEVICE void add(const u8 *stage, u32 o, u32 s, const float4 *x, u32 lane, float *sums) {
    constexpr u32 LENGTH = KS < K ? KS : K, STEP = 32 * Of::G, STEP_BYTES = STEP / Of::BLOCK * Of::BYTES;
    constexpr bool RAGGED = K % STEP != 0 || !SAME;
    static_assert(STEP_BYTES % 4 == 0, "words lie alike in all steps");
    const float4 *from = x + s * (KS / 4);
    const u32 left = (K - s * LENGTH) / Of::G;  // granules from here to the end of an output row
    u32 skip[R], place[Of::G / 4];
    UNROLL for (int r = 0; r < R; r++) skip[r] = ALIGNED ? 0 : (AT + (o + r) * STRIDE + s * SLICE) & 15;
    UNROLL for (int j = 0; j < Of::G / 4; j++) place[j] = swizzled<PATTERN>(Of::at(lane, j));
    // All granules of a slice side by side hide the latency of shared memory, but need registers for what was loaded.
    constexpr int AT_ONCE = !ALIGNED || (R * T >= 16 && Of::WHOLE < 16) ? 1 : RAGGED ? 2 : 8;
#pragma unroll AT_ONCE
    for (u32 i = 0; i < (LENGTH + STEP - 1) / STEP; i++) {
      if (RAGGED && 32 * i + lane >= left) continue;
      Of part[R];
      UNROLL for (int r = 0; r < R; r++) part[r].load(stage + r * PITCH + i * STEP_BYTES, skip[r], lane);
      UNROLL for (int j = 0; j < Of::G / 4; j++) {
        float w[R][4];
        UNROLL for (int r = 0; r < R; r++) part[r].quad(j, w[r]);
        UNROLL for (int t = 0; t < T; t++) {
          const float4 v = from[t * (K / 4) + i * (STEP / 4) + place[j]];
          UNROLL for (int r = 0; r < R; r++) {
            float &sum = sums[r * T + t];
            sum = fmaf(w[r][3], v.w, fmaf(w[r][2], v.z, fmaf(w[r][1], v.y, fmaf(w[r][0], v.x, sum))));
          }
        }
      }
    }
  }
};

// The sums over all lanes of N values: value i ends in the lanes whose upper bits are i. Each value's sum is the same
// butterfly, 16 lanes apart first, whatever N is: while there are several values, half of them are given away for
// half of the partner's, which costs a quarter of a butterfly for each.
template <int N, int AWAY = 16> DEVICE float over_lanes(float *v, u32 lane) {
  if constexpr (N > 1) {
    const bool upper = lane & AWAY;
    UNROLL for (int i = 0; i < N / 2; i++) {
      const float mine = upper ? v[i + N / 2] : v[i], theirs = upper ? v[i] : v[i + N / 2];
      v[i] = mine + __shfl_xor_sync(0xffffffffu, theirs, AWAY);
    }
    return over_lanes<N / 2, AWAY / 2>(v, lane);
  } else {
    float sum = v[0];
    UNROLL for (int away = AWAY; away; away >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, away);
    return sum;
  }
}

DEVICE float activated(u32 kind, float g, float u, float alpha, float limit) {
  if (kind == SWIGLU) return g / (1.0f + expf(-g)) * u;
  if (kind == GEGLU) return g / (1.0f + expf(-1.5957691216f * (g + 0.044715f * (g * g * g)))) * u;
  g = g > limit ? limit : g;
  u = u > limit ? limit : u < -limit ? -limit : u;
  return g / (1.0f + expf(-alpha * g)) * (u + 1.0f);
}

DEVICE float bias(const u8 *row, int at, u32 o) { return at < 0 ? 0.0f : ((const float *)(row + at))[o]; }

template <bool FIRST, int T, int WARPS, int R, int KS, int DEPTH, int SHARED> DEVICE void phase(const Work &work) {
  constexpr int K = FIRST ? HIDDEN : INNER, OUT = FIRST ? INNER : HIDDEN;
  typedef Part<FIRST ? GATE : DOWN, K, KS, FIRST ? GATE_AT : DOWN_AT> A;
  typedef Part<FIRST ? UP : DOWN, K, KS, FIRST ? UP_AT : DOWN_AT> B;
  constexpr u32 UNITS = OUT / R, SLICES = (K + KS - 1) / KS;  // a unit: R output rows of A, and of B in the first phase
  constexpr u32 STAGE = R * (A::PITCH + (FIRST ? B::PITCH : 0));
  constexpr int M = FIRST ? 2 * R : R, PATTERN = A::Of::SWIZZLE;
  static_assert(OUT % R == 0, "whole units");
  static_assert(T * K * 4 + WARPS * DEPTH * STAGE + 16 <= SHARED, "what cut() of cupy_hot.py counted");
  extern __shared__ __align__(16) u8 memory[];
  float4 *x = (float4 *)memory;  // [T, K], swizzled
  const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u8 *ring = memory + T * K * 4 + warp * (DEPTH * STAGE);
  const u32 ring_at = shared_address(ring);

  if (FIRST) next_may_start();
  // Each block takes one stretch of the units, so that it meets few rows and reads their tokens' inputs seldom.
  const u32 all = work.rows * UNITS, begin = all * blockIdx.x / gridDim.x, end = all * (blockIdx.x + 1) / gridDim.x;
  if (begin == end) {
    wait_for_kernels_before();
    return;
  }
  u32 coming = begin + warp, coming_slice = 0, coming_at = 0;  // what is fetched next, and the stage that it goes to
  auto fetch = [&]() {
    if (coming < end) {
      const u8 *row = work.slots + work.slot_bytes * work.slot[coming / UNITS];
      const u32 o = coming % UNITS * R;
      A::template fetch<R>(row, o, coming_slice, ring_at + coming_at, lane);
      if (FIRST) B::template fetch<R>(row, o, coming_slice, ring_at + coming_at + R * A::PITCH, lane);
      if (++coming_slice == SLICES) coming_slice = 0, coming += WARPS;
    }
    copies_end();  // an empty group too: the groups are counted
    coming_at = coming_at == (DEPTH - 1) * STAGE ? 0 : coming_at + STAGE;
  };
  UNROLL for (int i = 0; i < DEPTH; i++) fetch();
  wait_for_kernels_before();  // from here on x and act may be read and written

  u32 unit = begin + warp, at = 0;
  for (u32 r = begin / UNITS; r * UNITS < end; r++) {
    const u32 first = work.first[r], count = work.first[r + 1] - first;
    bool same = FIRST && r != begin / UNITS && count == first - work.first[r - 1];
    if (FIRST && same)
      for (u32 t = 0; t < count; t++) same = same && work.token[first + t] == work.token[work.first[r - 1] + t];
    if (!same) {
      if (r != begin / UNITS) __syncthreads();  // all warps are done with the inputs of the row before
      for (u32 q = threadIdx.x; q < T * K / 4; q += 32 * WARPS) {
        const u32 t = q / (K / 4), i = q % (K / 4);
        float4 v = {0, 0, 0, 0};
        if (t < count) {
          const float *from =
              FIRST ? work.x + (u64)work.token[first + t] * HIDDEN : work.act + (u64)(first + t) * INNER;
          v = load_fresh((const float4 *)from + i);
        }
        x[t * (K / 4) + swizzled<PATTERN>(i)] = v;
      }
      __syncthreads();
    }
    const u8 *row = work.slots + work.slot_bytes * work.slot[r];
    const u32 stop = end < (r + 1) * UNITS ? end : (r + 1) * UNITS;
    for (; unit < stop; unit += WARPS) {
      const u32 o = (unit - r * UNITS) * R;
      float sums[M * T] = {};
#pragma unroll 1
      for (u32 s = 0; s < SLICES; s++) {
        wait_for_all_but<DEPTH - 1>();
        __syncwarp();
        if (FIRST && GATE == UP && A::PITCH == B::PITCH && A::ALIGNED && B::ALIGNED) {
          // Gate and up lie alike: inputs are read once for both.
          A::template add<PATTERN, M, T>(ring + at, o, s, x, lane, sums);
        } else {
          A::template add<PATTERN, R, T>(ring + at, o, s, x, lane, sums);
          if (FIRST) B::template add<PATTERN, R, T>(ring + at + R * A::PITCH, o, s, x, lane, sums + R * T);
        }
        __syncwarp();  // all lanes have read the stage before it is filled again
        fetch();
        at = at == (DEPTH - 1) * STAGE ? 0 : at + STAGE;
      }
      // Output i / T of token i % T ends in the lanes i * SHARE and up; the first of them finishes it.
      constexpr u32 SHARE = 32 / (R * T);
      static_assert(SHARE * R * T == 32, "R and T are powers of two, and there is a lane for each output");
      float one = over_lanes<R * T>(sums, lane), two = FIRST ? over_lanes<R * T>(sums + (FIRST ? R * T : 0), lane) : 0;
      const u32 mine = o + lane / SHARE / T, t = lane / SHARE % T;
      if (lane % SHARE == 0 && t < count) {
        if (FIRST) {
          one += bias(row, GATE_BIAS_AT, mine), two += bias(row, UP_BIAS_AT, mine);
          work.act[(u64)(first + t) * INNER + mine] = activated(work.kind, one, two, work.alpha, work.limit);
        } else {
          work.out[(u64)work.to[first + t] * HIDDEN + mine] = one + bias(row, DOWN_BIAS_AT, mine);
        }
      }
    }
  }
}

// Two kernels for rows of up to T tokens; of each, the output rows of a unit, weights of a slice, stages of a ring and
// bytes of shared memory. Two blocks must fit an SM by their registers, one of each kernel.
#define CHAIN(T, WARPS, R_A, KS_A, DEPTH_A, SHARED_A, R_B, KS_B, DEPTH_B, SHARED_B)                             \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) gate_up_##T(const __grid_constant__ Work work) {  \
    phase<true, T, WARPS, R_A, KS_A, DEPTH_A, SHARED_A>(work);                                                  \
  }                                                                                                             \
  extern "C" __global__ void __launch_bounds__(32 * WARPS, 2) down_##T(const __grid_constant__ Work work) {     \
    phase<false, T, WARPS, R_B, KS_B, DEPTH_B, SHARED_B>(work);                                                 \
  }
