// The cold chain and its worker: the expert FFNs that miss the pool, computed on the CPU from the stored bytes.
//
// This is our only native code. The file is read in two ways. Compiled as it stands it is the extension module
// slotwise.executor._cold: a pool of threads, a queue of jobs, a few Python methods. It then includes itself once
// per instruction set with VARIANT defined, and only the part called "Kernels" below is compiled, with the vector
// operations of that set. The variant is chosen when the module is loaded, never by a compiler flag.
//
// What holds in every variant, and what the tests hold us to:
// - The sum of one output of one token runs in one fixed order: lane by lane over the inputs, then one fixed tree over
//   the lanes. How many tokens, rows, jobs or threads there are changes which sums are made side by side, never the
//   order inside one. So the bytes of a result depend on the token, the row and the variant only.
// - No sum is shared between threads. Threads take ranges of output rows from an integer counter.
// - Floating point is as written: no fast-math, -ffp-contract=off, and a fused multiply-add only where it is called.
//
// Layouts of the block dtypes are those of the GGUF files (see dtypes.py, which describes them in words).

#ifndef VARIANT

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef uint8_t u8;
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum { F32, F16, BF16, Q8_0, Q4_0, MXFP4, Q4_K, Q6_K, N_DTYPES };
enum { SWIGLU, GEGLU, SWIGLU_CLAMPED, N_ACTIVATIONS };
enum { MAX_T = 8 };      // tokens computed while weights are read once
enum { MAX_R = 4 };      // rows computed side by side
enum { MAX_ROWS = 128 };  // output rows of one piece of work, at most

// Weights that share a scale header, and the bytes that hold them.
static const int BLOCK[N_DTYPES] = {1, 1, 1, 32, 32, 32, 256, 256};
static const int BYTES[N_DTYPES] = {4, 2, 2, 34, 18, 17, 144, 210};

// Bytes of the weights that the kernels take in one go: a block, or 32 weights of a dtype without blocks.
#define STRETCH(dtype) ((dtype) <= BF16 ? 32 * (size_t)BYTES[dtype] : (size_t)BYTES[dtype])

static size_t row_stride(int dtype, size_t k) { return k / (size_t)BLOCK[dtype] * (size_t)BYTES[dtype]; }

// The two values of FP4 E2M1 that are not integers are halves, so the table is doubled and the scale halved.
#define MXFP4_TWICE 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12
#if defined(__x86_64__)
static const float FP4_FLOATS[16] = {MXFP4_TWICE};
#endif
static const int8_t FP4_BYTES[32] = {MXFP4_TWICE, MXFP4_TWICE};

INLINE uint16_t get16(const u8 *p) { uint16_t v; memcpy(&v, p, 2); return v; }
INLINE uint32_t get32(const u8 *p) { uint32_t v; memcpy(&v, p, 4); return v; }
INLINE float as_float(uint32_t bits) { float v; memcpy(&v, &bits, 4); return v; }
INLINE uint32_t as_bits(float v) { uint32_t bits; memcpy(&bits, &v, 4); return bits; }

// IEEE half to float in integers and one exact multiplication: also right for subnormals, infinities and NaN.
INLINE float half_bits(uint16_t h) {
  const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return as_float(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  return as_float(as_bits(as_float(rest << 13) * 0x1p112f) | sign);
}

// Half of 2^(e-127), the scale of an MXFP4 block, by its exponent byte; the two smallest are subnormal. Filled at
// import.
static float MXFP4_SCALES[256];
INLINE float mxfp4_scale(u8 e) { return MXFP4_SCALES[e]; }

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each lie in the low 6 bits of bytes 0-3 and
// 4-7; of the last four the low 4 bits lie in bytes 8-11 and the high 2 bits on top of the first four.
INLINE void q4_k_scales(const u8 *p, u8 scales[16]) {
  const uint32_t a = get32(p), b = get32(p + 4), c = get32(p + 8);
  const uint32_t words[4] = {
      a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030),
      b & 0x3f3f3f3f, (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030),
  };
  memcpy(scales, words, 16);
}

// e^x to about one unit in the last place: 2^n times a polynomial on [-ln2/2, ln2/2]. Element by element and free of
// branches, so that the compiler's vectors give the same bits as one element alone. NaN stays NaN.
INLINE float exp_of(float x) {
  x = x > 88.0f ? 88.0f : x;
  x = x < -87.0f ? -87.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: rounds to an integer in the low bits
  const float n = shifted - 12582912.0f;
  const float f = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // ln2 in two parts
  float p = 1.9875691e-4f;
  p = p * f + 1.3981999e-3f;
  p = p * f + 8.3334519e-3f;
  p = p * f + 4.1665796e-2f;
  p = p * f + 1.6666665e-1f;
  p = p * f + 5.0000001e-1f;
  p = (p * f) * f + f + 1.0f;
  return as_float(as_bits(p) + (as_bits(shifted) << 23));
}

// SWIGLU         silu(g) * u
// GEGLU          gelu(g) * u with the tanh form of gelu (Gemma's gelu_pytorch_tanh): g * sigmoid(2 z),
//                z = sqrt(2/pi) * (g + 0.044715 g^3)
// SWIGLU_CLAMPED g' * sigmoid(alpha g') * (u' + 1) with g' = min(g, limit), u' = clip(u, -limit, limit)
//                (gpt-oss: GptOssExperts of Hugging Face transformers, alpha 1.702, limit 7)
INLINE float activated(int kind, float g, float u, float alpha, float limit) {
  if (kind == SWIGLU) return g / (1.0f + exp_of(-g)) * u;
  if (kind == GEGLU) return g / (1.0f + exp_of(-1.5957691216f * (g + 0.044715f * (g * g * g)))) * u;
  g = g > limit ? limit : g;
  u = u > limit ? limit : u < -limit ? -limit : u;
  return g / (1.0f + exp_of(-alpha * g)) * (u + 1.0f);
}

// One token's activations rounded to int8: blocks of 32 share a scale (the named option `activations="int8"`).
typedef struct {
  const int8_t *q;     // [k]
  const float *scale;  // [k / 32]
  const float *sum;    // [k / 32] scale * sum of the block: what the minima of Q4_K are multiplied with
} rounded;

typedef struct {
  const char *name;
  // out[row * n_t + t] = sum over k of weights[row][k] * x[t][k]; n_t is 1, 2, 4 or 8
  void (*rows)(int dtype, const u8 *w, size_t k, int n_rows, const float *const *x, int n_t, float *out);
  void (*rounded_rows)(int dtype, const u8 *w, size_t k, int n_rows, const rounded *x, int n_t, float *out);
  void (*activate)(int kind, const float *g, const float *u, float alpha, float limit, int n, float *out);
  uint64_t (*read)(const u8 *from, size_t bytes);  // xor of the 8-byte words: proof that everything was read
} kernels;

#if defined(__x86_64__)

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")
#endif
#define VARIANT avx512
#define VARIANT_NAME "avx512"
#define IS_AVX512 1
#include "cold.c"
#undef IS_AVX512
#undef VARIANT_NAME
#undef VARIANT
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif
#define VARIANT avx2
#define VARIANT_NAME "avx2"
#define IS_AVX2 1
#include "cold.c"
#undef IS_AVX2
#undef VARIANT_NAME
#undef VARIANT
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#elif defined(__aarch64__)

#define VARIANT neon
#define VARIANT_NAME "neon"
#define IS_NEON 1
#include "cold.c"
#undef IS_NEON
#undef VARIANT_NAME
#undef VARIANT

#endif

#define VARIANT plain
#define VARIANT_NAME "plain"
#define IS_PLAIN 1
#include "cold.c"
#undef IS_PLAIN
#undef VARIANT_NAME
#undef VARIANT

// ---------------------------------------------------------------------------------------------------------- The worker

enum { RING = 64 };  // jobs that may be queued or unfinished; submit waits for room beyond that
enum { MAX_PHASES = 4 };
#define WAIT_SPIN_S 0.02
enum { JOB_FFN, JOB_READ, JOB_COPY, JOB_NORMAL };

typedef struct {
  size_t hidden, inner;
  int dtype[3];        // gate, up, down
  size_t offset[3];    // of the projections inside a row, bytes
  int64_t bias[3];     // of the float32 biases inside a row, bytes; -1: none
  int activation;
  float alpha, limit;
  bool rounds;         // activations are rounded to int8 for the block dtypes
} layer;

typedef struct {
  size_t pieces;             // ranges of work; a phase begins when the one before is finished
  _Atomic size_t next, finished;
} phase;

typedef struct {
  int kind;
  int64_t ticket;
  layer layer;
  size_t m, n_pairs;
  uint64_t *rows;      // [m] addresses
  int64_t *offsets;    // [m + 1] into tokens
  int64_t *tokens;     // [n_pairs]
  int64_t *places;     // [n_pairs] rows of out
  size_t room;         // bytes behind rows, offsets, tokens, places
  const float *x;
  float *out;
  float *scratch;      // activations [n_pairs, inner padded], then rounded copies
  size_t scratch_bytes;
  enum { AS_IS, ALIGN, ROUND } prepare;  // what the first phase does to x
  float *aligned;      // [n_tokens, x_stride]: 64-byte loads that straddle cache lines would halve the speed
  size_t x_stride, act_stride, n_tokens, rows_1, rows_2, per_1, per_2;
  int8_t *q[2];        // rounded x [n_tokens, hidden] and rounded activations [n_pairs, inner]
  float *scale[2], *sum[2];
  int n_phases;
  phase phases[MAX_PHASES];
  int64_t fail_piece;  // -1, or the piece (counted over all phases) at which the job fails: for tests
  const u8 *from;      // read, copy
  u8 *to;
  size_t bytes, piece_bytes;
  uint64_t seed;
  float sigma;
  int fill_dtype;
  _Atomic uint32_t *counter;   // NULL, or a word of the caller that counts finished jobs: a GPU may be watching it
  _Atomic uint64_t *checksum;  // of the caller, who waits: this place may be taken again before it wakes
  _Atomic int failed;
  _Atomic int inside;        // threads that have not left the job
  _Atomic int64_t finished;  // ticket of the last job that finished in this place
  double began, ended;       // when its first piece was taken and its last one finished, CLOCK_MONOTONIC
  bool holds;                // views are held
  Py_buffer views[2];
  bool has_view[2];
} job;

typedef struct {
  PyObject_HEAD
  const kernels *kernels;
  int n_threads;
  pthread_t *threads;
  int *cores;  // [n_threads] or NULL
  double spin_s;
  job *ring;
  layer *layers;
  int n_layers;
  int64_t *failures;  // tickets that failed and that nobody has waited for
  size_t n_failures, room_failures;
  int64_t fail_piece;  // for the next job
  _Atomic int64_t submitted;  // tickets count from 1
  _Atomic int sleepers, waiters, stop;
  bool closed;
  unsigned generation;
  pthread_mutex_t lock;       // sleeping, waking, failures
  pthread_mutex_t submitting; // one submitter at a time
  pthread_cond_t wake, landed;
} pool;

typedef struct {
  pool *pool;
  int index;
} thread_start;

static unsigned generation;  // counts forks: threads do not survive one
static void forked(void) { generation++; }

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

INLINE void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static int padded_tokens(size_t n) { return n <= 1 ? 1 : n <= 2 ? 2 : n <= 4 ? 4 : MAX_T; }

// One projection for one group of at most MAX_T tokens: out[row * padded + t]; returns padded, the group's size rounded
// up to 1, 2, 4 or 8. A padded token repeats the last one, and its result is dropped.
static int project(const pool *p, const job *j, int which, const u8 *row, size_t first, int n, size_t begin,
                    int n_t, float *out) {
  const layer *l = &j->layer;
  const int dtype = l->dtype[which], source = which == 2;
  const size_t k = source ? l->inner : l->hidden;
  const u8 *w = row + l->offset[which] + first * row_stride(dtype, k);
  const int padded = padded_tokens((size_t)n_t);
  size_t at[MAX_T];
  for (int t = 0; t < padded; t++) {
    const size_t pair = begin + (size_t)(t < n_t ? t : n_t - 1);
    at[t] = source ? pair : (size_t)j->tokens[pair];
  }
  if (l->rounds && BLOCK[dtype] > 1) {
    rounded x[MAX_T];
    for (int t = 0; t < padded; t++)
      x[t] = (rounded){j->q[source] + at[t] * k, j->scale[source] + at[t] * (k / 32),
                       j->sum[source] + at[t] * (k / 32)};
    p->kernels->rounded_rows(dtype, w, k, n, x, padded, out);
  } else {
    const float *x[MAX_T];
    for (int t = 0; t < padded; t++) x[t] = source ? j->scratch + at[t] * j->act_stride
                    : j->prepare == ALIGN ? j->aligned + at[t] * j->x_stride : j->x + at[t] * k;
    p->kernels->rows(dtype, w, k, n, x, padded, out);
  }
  if (l->bias[which] >= 0) {
    const u8 *bias = row + l->bias[which] + 4 * first;
    for (int i = 0; i < n; i++)
      for (int t = 0; t < padded; t++) out[i * padded + t] += as_float(get32(bias + 4 * i));
  }
  return padded;
}

// Gate, up and activation for a range of one expert's inner rows.
static void piece_inner(const pool *p, job *j, size_t piece) {
  alignas(64) float g[MAX_ROWS * MAX_T], u[MAX_ROWS * MAX_T];
  const layer *l = &j->layer;
  const size_t e = piece / j->per_1, first = piece % j->per_1 * j->rows_1;
  const int n = (int)smaller(j->rows_1, l->inner - first);
  const size_t end = (size_t)j->offsets[e + 1];
  const u8 *row = (const u8 *)(uintptr_t)j->rows[e];
  for (size_t begin = (size_t)j->offsets[e]; begin < end; begin += MAX_T) {
    const int n_t = (int)smaller(MAX_T, end - begin);
    project(p, j, 0, row, first, n, begin, n_t, g);
    const int stride = project(p, j, 1, row, first, n, begin, n_t, u);
    p->kernels->activate(l->activation, g, u, l->alpha, l->limit, n * stride, g);
    for (int t = 0; t < n_t; t++) {
      float *act = j->scratch + (begin + (size_t)t) * j->act_stride + first;
      for (int i = 0; i < n; i++) act[i] = g[i * stride + t];
    }
  }
}

// Down for a range of one expert's output rows.
static void piece_down(const pool *p, job *j, size_t piece) {
  alignas(64) float y[MAX_ROWS * MAX_T];
  const layer *l = &j->layer;
  const size_t e = piece / j->per_2, first = piece % j->per_2 * j->rows_2;
  const int n = (int)smaller(j->rows_2, l->hidden - first);
  const size_t end = (size_t)j->offsets[e + 1];
  const u8 *row = (const u8 *)(uintptr_t)j->rows[e];
  for (size_t begin = (size_t)j->offsets[e]; begin < end; begin += MAX_T) {
    const int n_t = (int)smaller(MAX_T, end - begin);
    const int stride = project(p, j, 2, row, first, n, begin, n_t, y);
    for (int t = 0; t < n_t; t++) {
      float *out = j->out + (size_t)j->places[begin + (size_t)t] * l->hidden + first;
      for (int i = 0; i < n; i++) out[i] = y[i * stride + t];
    }
  }
}

// Rounds one vector to int8 in blocks of 32: scale = largest magnitude / 127, to the nearest, ties to even.
static void round_vector(const float *x, size_t k, int8_t *q, float *scale, float *sum) {
  for (size_t b = 0; b < k / 32; b++, x += 32, q += 32) {
    float top = 0.0f;
    for (int i = 0; i < 32; i++) top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    const float s = top / 127.0f, inverse = top > 0.0f ? 127.0f / top : 0.0f;
    int total = 0;
    for (int i = 0; i < 32; i++) {
      const float r = (x[i] * inverse + 12582912.0f) - 12582912.0f;
      q[i] = (int8_t)r;
      total += q[i];
    }
    scale[b] = s;
    sum[b] = s * (float)total;
  }
}

// Sum of eight 16-bit uniforms, scaled to unit variance: normal to the eye up to four sigma, the same for every thread
// count because it hangs on the position alone.
INLINE float normal_at(uint64_t seed, uint64_t at) {
  uint64_t total = 0;
  for (uint64_t half = 0; half < 2; half++) {
    uint64_t z = seed + (2 * at + half + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    total += (z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48);
  }
  return ((float)total - 262140.0f) * (1.0f / 53509.7f);  // mean 8 * 65535 / 2, sigma 65536 * sqrt(8 / 12)
}

static uint16_t to_half(float v) {  // to nearest, ties to even; |v| < 65504 and no NaN: normal values
  const uint32_t bits = as_bits(v), sign = bits >> 16 & 0x8000;
  const float a = as_float(bits & 0x7fffffff);
  if (a < 0x1p-14f) return (uint16_t)(sign | (as_bits(a + 0.5f) - as_bits(0.5f)));  // 0.5 has 2^-24 as its last bit
  const uint32_t rest = (bits & 0x7fffffff) - (112u << 23);
  return (uint16_t)(sign | (rest + 0xfff + (rest >> 13 & 1)) >> 13);
}

static void piece_normal(job *j, size_t piece) {
  const size_t width = (size_t)BYTES[j->fill_dtype], first = piece * (j->piece_bytes / width);
  const size_t end = smaller(first + j->piece_bytes / width, j->bytes / width);
  for (size_t i = first; i < end; i++) {
    const float v = j->sigma * normal_at(j->seed, i);
    const uint32_t bits = as_bits(v);
    const uint16_t half =
        j->fill_dtype == F16 ? to_half(v) : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    if (width == 4) memcpy(j->to + 4 * i, &v, 4);
    else memcpy(j->to + 2 * i, &half, 2);
  }
}

static void piece_of(pool *p, job *j, int at, size_t piece) {
  if (j->kind == JOB_FFN) {
    if (!j->m) return;
    const size_t hidden = j->layer.hidden, inner = j->layer.inner;
    const int step = j->prepare == AS_IS ? at + 1 : at;
    if (step == 0 && j->prepare == ALIGN)
      memcpy(j->aligned + piece * j->x_stride, j->x + piece * hidden, hidden * sizeof(float));
    else if (step == 0)
      round_vector(j->x + piece * hidden, hidden, j->q[0] + piece * hidden, j->scale[0] + piece * (hidden / 32),
                   j->sum[0] + piece * (hidden / 32));
    else if (step == 1) piece_inner(p, j, piece);
    else if (step == 2 && j->prepare == ROUND)
      round_vector(j->scratch + piece * j->act_stride, inner, j->q[1] + piece * inner,
                   j->scale[1] + piece * (inner / 32), j->sum[1] + piece * (inner / 32));
    else piece_down(p, j, piece);
    return;
  }
  if (j->kind == JOB_NORMAL) {
    piece_normal(j, piece);
    return;
  }
  const size_t first = piece * j->piece_bytes, n = smaller(j->piece_bytes, j->bytes - first);
  if (j->kind == JOB_READ) atomic_fetch_xor(j->checksum, p->kernels->read(j->from + first, n));
  else memcpy(j->to + first, j->from + first, n);
}

static void remember_failure(pool *p, int64_t ticket) {
  pthread_mutex_lock(&p->lock);
  if (p->n_failures < p->room_failures) p->failures[p->n_failures++] = ticket;  // room is made at submit
  pthread_mutex_unlock(&p->lock);
}

// One thread's part of one job. Pieces are taken from a counter and counted when finished, so a thread that wakes late
// finds none left and holds nobody up.
static void work_on(pool *p, job *j) {
  size_t before = 0;
  for (int at = 0; at < j->n_phases; at++) {
    phase *f = &j->phases[at];
    const bool last = at == j->n_phases - 1;
    for (size_t piece; (piece = atomic_fetch_add(&f->next, 1)) < f->pieces;) {
      if (at == 0 && piece == 0) j->began = now_s();
      if (j->fail_piece == (int64_t)(before + piece)) atomic_store(&j->failed, 1);
      if (!atomic_load_explicit(&j->failed, memory_order_relaxed)) piece_of(p, j, at, piece);
      if (atomic_fetch_add(&f->finished, 1) + 1 == f->pieces && last) {
        if (atomic_load(&j->failed)) remember_failure(p, j->ticket);
        j->ended = now_s();
        if (j->counter) atomic_fetch_add(j->counter, 1);
        atomic_store(&j->finished, j->ticket);
        if (atomic_load(&p->waiters)) {
          pthread_mutex_lock(&p->lock);
          pthread_cond_broadcast(&p->landed);
          pthread_mutex_unlock(&p->lock);
        }
      }
    }
    before += f->pieces;
    if (last) break;
    for (int spins = 0; atomic_load_explicit(&f->finished, memory_order_acquire) < f->pieces; spins++) {
      if (spins % 64 != 63) relax();
      else sched_yield();  // whoever holds the last piece may be waiting for this core
    }
  }
  if (atomic_fetch_sub(&j->inside, 1) == 1 && atomic_load(&p->waiters)) {  // a submitter may wait for this place
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->landed);
    pthread_mutex_unlock(&p->lock);
  }
}

// Spins, then sleeps, until `ticket` is submitted. False: the pool is closing and there is no such job.
static bool next_job(pool *p, int64_t ticket) {
  const double until = now_s() + p->spin_s;
  for (int spins = 0;; spins++) {
    if (atomic_load_explicit(&p->submitted, memory_order_acquire) >= ticket) return true;
    if (atomic_load(&p->stop)) return atomic_load(&p->submitted) >= ticket;
    relax();
    if ((spins & 63) != 63) continue;
    sched_yield();  // where cores are fewer than threads, whoever is awaited may need this one
    if (now_s() >= until) break;
  }
  pthread_mutex_lock(&p->lock);
  atomic_fetch_add(&p->sleepers, 1);
  while (atomic_load(&p->submitted) < ticket && !atomic_load(&p->stop)) pthread_cond_wait(&p->wake, &p->lock);
  atomic_fetch_sub(&p->sleepers, 1);
  pthread_mutex_unlock(&p->lock);
  return atomic_load(&p->submitted) >= ticket;
}

static void *thread_main(void *argument) {
  const thread_start start = *(thread_start *)argument;
  free(argument);
  pool *p = start.pool;
#ifdef __linux__
  pthread_setname_np(pthread_self(), "slotwise-cold");
  if (p->cores) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(p->cores[start.index], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);  // the cores were checked against the allowed ones
  }
#endif
  for (int64_t ticket = 1; next_job(p, ticket); ticket++) work_on(p, &p->ring[ticket % RING]);
  return NULL;
}

static bool is_done(pool *p, int64_t ticket) {
  return atomic_load(&p->ring[ticket % RING].finished) >= ticket;
}

// A place in the ring is free when its job is finished and every thread has left it.
static bool is_free(job *j) { return atomic_load(&j->inside) == 0; }

// Spins, then sleeps, until the condition holds. Called without the GIL. Whoever waits has nothing better to do, and being
// woken costs more than the rest of a tick: it spins for longer than any job of a decode step takes.
static void wait_until(pool *p, bool (*holds)(pool *, int64_t), int64_t ticket) {
  const double until = now_s() + (p->spin_s > WAIT_SPIN_S ? p->spin_s : WAIT_SPIN_S);
  for (int spins = 0; !holds(p, ticket); spins++) {
    relax();
    if ((spins & 63) != 63) continue;
    sched_yield();  // where cores are fewer than threads, whoever is awaited may need this one
    if (now_s() >= until) {
      pthread_mutex_lock(&p->lock);
      atomic_fetch_add(&p->waiters, 1);
      while (!holds(p, ticket)) pthread_cond_wait(&p->landed, &p->lock);
      atomic_fetch_sub(&p->waiters, 1);
      pthread_mutex_unlock(&p->lock);
      return;
    }
  }
}

static bool place_is_free(pool *p, int64_t ticket) { return is_free(&p->ring[ticket % RING]); }

static void release_views(job *j) {
  for (int i = 0; i < 2; i++)
    if (j->has_view[i]) {
      j->has_view[i] = false;
      PyBuffer_Release(&j->views[i]);
    }
}

// ------------------------------------------------------------------------------------------------------- Python methods

static bool usable(pool *p, bool open) {
  if (p->generation != generation) {
    PyErr_SetString(PyExc_RuntimeError, "the cold chain was opened before a fork; its threads live in the parent "
                                        "process: open one in this process");
    return false;
  }
  if (open && p->closed) {
    PyErr_SetString(PyExc_RuntimeError, "the cold chain is closed: open another");
    return false;
  }
  return true;
}

// Takes the next place of the ring, or NULL with an exception. The caller fills it and calls publish; `submitting` is
// held in between.
static job *begin_job(pool *p, int kind) {
  if (!usable(p, true)) return NULL;
  Py_BEGIN_ALLOW_THREADS
  pthread_mutex_lock(&p->submitting);
  wait_until(p, place_is_free, atomic_load(&p->submitted) + 1);
  Py_END_ALLOW_THREADS
  if (!usable(p, true)) {  // closed while we waited for the place
    pthread_mutex_unlock(&p->submitting);
    return NULL;
  }
  pthread_mutex_lock(&p->lock);
  const size_t room = p->n_failures + RING + 1;  // every job in the ring could fail
  if (room > p->room_failures) {
    int64_t *larger = realloc(p->failures, 2 * room * sizeof *larger);
    if (larger) {
      p->failures = larger;
      p->room_failures = 2 * room;
    }
  }
  const bool enough = room <= p->room_failures;
  pthread_mutex_unlock(&p->lock);
  if (!enough) {
    pthread_mutex_unlock(&p->submitting);
    PyErr_NoMemory();
    return NULL;
  }
  job *j = &p->ring[(atomic_load(&p->submitted) + 1) % RING];
  release_views(j);
  j->ticket = 0;  // whoever waits for the job that was here must not release the views of the next
  j->kind = kind;
  j->counter = NULL;
  j->n_phases = 1;
  j->fail_piece = -1;
  return j;
}

static PyObject *abandon(pool *p, job *j) {
  release_views(j);
  pthread_mutex_unlock(&p->submitting);
  return NULL;
}

static int64_t publish(pool *p, job *j) {
  const int64_t ticket = atomic_load(&p->submitted) + 1;
  j->ticket = ticket;
  j->fail_piece = p->fail_piece;
  p->fail_piece = -1;
  atomic_store(&j->failed, 0);
  for (int i = 0; i < j->n_phases; i++) {
    atomic_store_explicit(&j->phases[i].next, 0, memory_order_relaxed);
    atomic_store_explicit(&j->phases[i].finished, 0, memory_order_relaxed);
  }
  atomic_store(&j->inside, p->n_threads);
  atomic_store(&p->submitted, ticket);
  if (atomic_load(&p->sleepers)) {
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
  }
  pthread_mutex_unlock(&p->submitting);
  return ticket;
}

// A whole array of int64, or NULL with an exception.
static const int64_t *integers(PyObject *from, Py_buffer *view, size_t *count, const char *name) {
  if (PyObject_GetBuffer(from, view, PyBUF_C_CONTIGUOUS) < 0) return NULL;
  if (view->itemsize != 8) {
    PyErr_Format(PyExc_ValueError, "%s has items of %zd bytes: pass a contiguous array of int64", name, view->itemsize);
    PyBuffer_Release(view);
    return NULL;
  }
  *count = (size_t)(view->len / 8);
  return view->buf;
}

// The address of an array of at least `floats` float32, or of memory given by an integer; NULL with an exception.
static float *floats_of(job *j, int which, PyObject *from, size_t floats, bool written, const char *name) {
  if (PyLong_Check(from)) {
    float *at = PyLong_AsVoidPtr(from);
    if (!at && !PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "%s is the address 0", name);
    return at;
  }
  Py_buffer *view = &j->views[which];
  if (PyObject_GetBuffer(from, view, PyBUF_C_CONTIGUOUS | (written ? PyBUF_WRITABLE : 0)) < 0) return NULL;
  j->has_view[which] = true;
  if (view->itemsize != 4 || (size_t)view->len < 4 * floats) {
    PyErr_Format(PyExc_ValueError, "%s holds %zd bytes in items of %zd: the job needs at least %zu float32", name,
                 view->len, view->itemsize, floats);
    return NULL;
  }
  return view->buf;
}

static bool grow(void **memory, size_t *room, size_t bytes) {
  if (bytes <= *room) return true;
  void *larger = aligned_alloc(64, (bytes + 4095) / 4096 * 4096);
  if (!larger) return false;
  free(*memory);
  *memory = larger;
  *room = (bytes + 4095) / 4096 * 4096;
  return true;
}

// Output rows of one piece: about 8 pieces a thread, between 16 and 512 KiB each, whole groups of rows.
static size_t rows_of_piece(const pool *p, size_t n_rows, size_t bytes_each, size_t m) {
  size_t bytes = n_rows * bytes_each * m / ((size_t)p->n_threads * 8);
  bytes = bytes < 16384 ? 16384 : bytes > 524288 ? 524288 : bytes;
  const size_t rows = (bytes / (bytes_each ? bytes_each : 1) + 7) / 8 * 8;
  return rows > MAX_ROWS ? MAX_ROWS : rows < 8 ? 8 : rows;
}

// submit(layer, rows, offsets, tokens, x, n_tokens, out, places, n_out, counter) -> ticket
static PyObject *pool_submit(PyObject *self, PyObject *const *args, Py_ssize_t n_args) {
  pool *p = (pool *)self;
  if (n_args != 10) return PyErr_Format(PyExc_TypeError, "submit takes 10 arguments, got %zd", n_args);
  const long which = PyLong_AsLong(args[0]);
  const long long n_tokens = PyLong_AsLongLong(args[5]), n_out = PyLong_AsLongLong(args[8]);
  void *counter = PyLong_AsVoidPtr(args[9]);
  if (PyErr_Occurred()) return NULL;
  if (which < 0 || which >= p->n_layers)
    return PyErr_Format(PyExc_ValueError, "layer %ld: this chain knows layers 0 to %d", which, p->n_layers - 1);
  job *j = begin_job(p, JOB_FFN);
  if (!j) return NULL;
  j->layer = p->layers[which];
  j->counter = counter;
  Py_buffer views[4];
  int held = 0;
  size_t m, n_offsets, n_pairs, n_places;
  const int64_t *rows = integers(args[1], &views[0], &m, "rows");
  if (!rows) return abandon(p, j);
  held = 1;
  const int64_t *offsets = integers(args[2], &views[1], &n_offsets, "offsets");
  if (!offsets) goto bad;
  held = 2;
  const int64_t *tokens = integers(args[3], &views[2], &n_pairs, "tokens");
  if (!tokens) goto bad;
  held = 3;
  const int64_t *places = integers(args[7], &views[3], &n_places, "places");
  if (!places) goto bad;
  held = 4;
  if (n_places != n_pairs) {
    PyErr_Format(PyExc_ValueError, "%zu places for %zu pairs: each has one", n_places, n_pairs);
    goto bad;
  }
  if (n_offsets != m + 1) {
    PyErr_Format(PyExc_ValueError, "%zu offsets for %zu rows: there must be one more than rows", n_offsets, m);
    goto bad;
  }
  bool rising = offsets[0] == 0 && offsets[m] == (int64_t)n_pairs;
  for (size_t e = 0; e < m; e++) rising = rising && offsets[e] <= offsets[e + 1];
  if (!rising) {
    PyErr_Format(PyExc_ValueError, "offsets must rise from 0 to the number of tokens, %zu", n_pairs);
    goto bad;
  }
  for (size_t e = 0; e < m; e++)
    if (!rows[e]) {
      PyErr_Format(PyExc_ValueError, "row %zu has the address 0", e);
      goto bad;
    }
  for (size_t i = 0; i < n_pairs; i++)
    if (tokens[i] < 0 || tokens[i] >= n_tokens) {
      PyErr_Format(PyExc_ValueError, "token %lld of pair %zu: x has tokens 0 to %lld", (long long)tokens[i], i,
                   n_tokens - 1);
      goto bad;
    }
  for (size_t i = 0; i < n_pairs; i++)
    if (places[i] < 0 || places[i] >= n_out) {
      PyErr_Format(PyExc_ValueError, "place %lld of pair %zu: out has rows 0 to %lld", (long long)places[i], i, n_out - 1);
      goto bad;
    }
  const layer *l = &j->layer;
  j->x = floats_of(j, 0, args[4], (size_t)n_tokens * l->hidden, false, "x");
  if (!j->x) goto bad;
  j->out = floats_of(j, 1, args[6], (size_t)n_out * l->hidden, true, "out");
  if (!j->out) goto bad;

  j->m = m;
  j->n_pairs = n_pairs;
  j->n_tokens = (size_t)n_tokens;
  void *memory = j->rows;
  if (!grow(&memory, &j->room, 8 * (m + n_offsets + 2 * n_pairs))) goto no_memory;
  j->rows = memory;
  j->offsets = (int64_t *)j->rows + m;
  j->tokens = j->offsets + n_offsets;
  j->places = j->tokens + n_pairs;
  memcpy(j->rows, rows, 8 * m);
  memcpy(j->offsets, offsets, 8 * n_offsets);
  memcpy(j->tokens, tokens, 8 * n_pairs);
  memcpy(j->places, places, 8 * n_pairs);

  j->act_stride = (l->inner + 15) / 16 * 16;
  j->x_stride = (l->hidden + 15) / 16 * 16;
  const bool straddles = (uintptr_t)j->x % 64 || l->hidden % 16;
  j->prepare = l->rounds ? ROUND : straddles ? ALIGN : AS_IS;
  const size_t acts = 4 * n_pairs * j->act_stride;
  const size_t n[2] = {j->n_tokens, n_pairs}, k[2] = {l->hidden, l->inner};
  size_t bytes = acts, at[2] = {0, 0};
  for (int i = 0; i < 2 && l->rounds; i++) {
    at[i] = bytes;
    bytes += (n[i] * k[i] + 63) / 64 * 64 + 2 * ((4 * n[i] * (k[i] / 32) + 63) / 64 * 64);
  }
  if (j->prepare == ALIGN) {
    at[0] = bytes;
    bytes += 4 * j->n_tokens * j->x_stride;
  }
  memory = j->scratch;
  if (!grow(&memory, &j->scratch_bytes, bytes + 64)) goto no_memory;
  j->scratch = memory;
  j->aligned = (float *)((u8 *)j->scratch + at[0]);
  for (int i = 0; i < 2 && l->rounds; i++) {
    u8 *base = (u8 *)j->scratch + at[i];
    j->q[i] = (int8_t *)base;
    j->scale[i] = (float *)(base + (n[i] * k[i] + 63) / 64 * 64);
    j->sum[i] = (float *)((u8 *)j->scale[i] + (4 * n[i] * (k[i] / 32) + 63) / 64 * 64);
  }
  j->rows_1 = rows_of_piece(p, l->inner, row_stride(l->dtype[0], l->hidden) + row_stride(l->dtype[1], l->hidden), m);
  j->rows_2 = rows_of_piece(p, l->hidden, row_stride(l->dtype[2], l->inner), m);
  j->per_1 = (l->inner + j->rows_1 - 1) / j->rows_1;
  j->per_2 = (l->hidden + j->rows_2 - 1) / j->rows_2;
  int phases = 0;
  if (j->prepare != AS_IS) j->phases[phases++].pieces = j->n_tokens;
  j->phases[phases++].pieces = m * j->per_1;
  if (l->rounds) j->phases[phases++].pieces = n_pairs;
  j->phases[phases++].pieces = m ? m * j->per_2 : 1;  // the last piece of the last phase is what finishes a job
  j->n_phases = phases;
  for (int i = 0; i < held; i++) PyBuffer_Release(&views[i]);
  return PyLong_FromLongLong(publish(p, j));

no_memory:
  PyErr_NoMemory();
bad:
  for (int i = 0; i < held; i++) PyBuffer_Release(&views[i]);
  return abandon(p, j);
}

static bool known_ticket(pool *p, PyObject *argument, int64_t *ticket) {
  *ticket = PyLong_AsLongLong(argument);
  if (*ticket == -1 && PyErr_Occurred()) return false;
  if (!usable(p, false)) return false;
  if (*ticket < 1 || *ticket > atomic_load(&p->submitted)) {
    PyErr_Format(PyExc_ValueError, "ticket %lld: this chain gave out tickets 1 to %lld", (long long)*ticket,
                 (long long)atomic_load(&p->submitted));
    return false;
  }
  return true;
}

// Forgets and reports a failure. Called with the GIL.
static bool take_failure(pool *p, int64_t ticket) {
  bool found = false;
  pthread_mutex_lock(&p->lock);
  for (size_t i = 0; i < p->n_failures && !found; i++)
    if (p->failures[i] == ticket) {
      p->failures[i] = p->failures[--p->n_failures];
      found = true;
    }
  pthread_mutex_unlock(&p->lock);
  return found;
}

// True, or False with an exception if the job failed.
static bool wait_for(pool *p, int64_t ticket) {
  if (!is_done(p, ticket)) {
    Py_BEGIN_ALLOW_THREADS
    wait_until(p, is_done, ticket);
    Py_END_ALLOW_THREADS
  }
  job *j = &p->ring[ticket % RING];
  if (j->ticket == ticket) release_views(j);
  if (!take_failure(p, ticket)) return true;
  PyErr_Format(PyExc_RuntimeError, "job %lld failed in the worker: its output is not to be used", (long long)ticket);
  return false;
}

static PyObject *pool_wait(PyObject *self, PyObject *argument) {
  int64_t ticket;
  if (!known_ticket((pool *)self, argument, &ticket) || !wait_for((pool *)self, ticket)) return NULL;
  Py_RETURN_NONE;
}

static PyObject *pool_done(PyObject *self, PyObject *argument) {
  int64_t ticket;
  if (!known_ticket((pool *)self, argument, &ticket)) return NULL;
  return PyBool_FromLong(is_done((pool *)self, ticket));
}

static PyObject *pool_times(PyObject *self, PyObject *argument) {
  int64_t ticket;
  pool *p = (pool *)self;
  if (!known_ticket(p, argument, &ticket)) return NULL;
  const job *j = &p->ring[ticket % RING];
  if (atomic_load(&j->finished) != ticket || j->ticket > ticket) {
    PyErr_Format(PyExc_ValueError, "job %lld is not finished, or too long ago: its times are kept for %d jobs",
                 (long long)ticket, RING);
    return NULL;
  }
  return Py_BuildValue("(dd)", j->began, j->ended);
}

// Finishes what is queued, joins the threads. Safe to call twice.
static void shut(pool *p) {
  if (p->closed || p->generation != generation) return;
  p->closed = true;
  Py_BEGIN_ALLOW_THREADS
  pthread_mutex_lock(&p->submitting);  // whoever is submitting finishes first; later ones see `closed`
  pthread_mutex_unlock(&p->submitting);
  pthread_mutex_lock(&p->lock);
  atomic_store(&p->stop, 1);
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->lock);
  for (int i = 0; i < p->n_threads; i++) pthread_join(p->threads[i], NULL);
  Py_END_ALLOW_THREADS
  for (int i = 0; i < RING; i++) release_views(&p->ring[i]);
}

static PyObject *pool_close(PyObject *self, PyObject *unused) {
  (void)unused;
  pool *p = (pool *)self;
  if (p->closed) Py_RETURN_NONE;
  if (!usable(p, false)) return NULL;
  shut(p);
  if (p->n_failures) {
    int64_t first = p->failures[0];
    for (size_t i = 1; i < p->n_failures; i++) first = p->failures[i] < first ? p->failures[i] : first;
    PyErr_Format(PyExc_RuntimeError, "%zu jobs failed that nobody waited for, the first was job %lld", p->n_failures,
                 (long long)first);
    p->n_failures = 0;
    return NULL;
  }
  Py_RETURN_NONE;
}

static PyObject *pool_fail_next(PyObject *self, PyObject *argument) {
  const long long piece = PyLong_AsLongLong(argument);
  if (piece == -1 && PyErr_Occurred()) return NULL;
  ((pool *)self)->fail_piece = piece;
  Py_RETURN_NONE;
}

// A job over plain memory, waited for. False with an exception if it failed.
static bool over_memory(pool *p, int kind, const u8 *from, u8 *to, size_t bytes, int dtype, uint64_t seed, float sigma,
                        _Atomic uint64_t *checksum) {
  job *j = begin_job(p, kind);
  if (!j) return false;
  j->from = from;
  j->to = to;
  j->bytes = bytes;
  j->fill_dtype = dtype;
  j->seed = seed;
  j->sigma = sigma;
  j->piece_bytes = 1 << 18;
  j->phases[0].pieces = (bytes + j->piece_bytes - 1) / j->piece_bytes;
  j->checksum = checksum;
  return wait_for(p, publish(p, j));
}

static PyObject *pool_read(PyObject *self, PyObject *args) {
  unsigned long long from, bytes;
  _Atomic uint64_t checksum = 0;
  if (!PyArg_ParseTuple(args, "KK", &from, &bytes)) return NULL;
  if (!from || !bytes || bytes % 8)
    return PyErr_Format(PyExc_ValueError, "read needs memory and a multiple of 8 bytes, got %llu", bytes);
  if (!over_memory((pool *)self, JOB_READ, (const u8 *)(uintptr_t)from, NULL, bytes, 0, 0, 0, &checksum)) return NULL;
  return PyLong_FromUnsignedLongLong(atomic_load(&checksum));
}

static PyObject *pool_copy(PyObject *self, PyObject *args) {
  unsigned long long to, from, bytes;
  if (!PyArg_ParseTuple(args, "KKK", &to, &from, &bytes)) return NULL;
  if (!to || !from || !bytes) return PyErr_Format(PyExc_ValueError, "copy needs two addresses and a length above 0");
  if (!over_memory((pool *)self, JOB_COPY, (const u8 *)(uintptr_t)from, (u8 *)(uintptr_t)to, bytes, 0, 0, 0, NULL))
    return NULL;
  Py_RETURN_NONE;
}

static PyObject *pool_normal(PyObject *self, PyObject *args) {
  unsigned long long to, bytes, seed;
  int dtype;
  float sigma;
  if (!PyArg_ParseTuple(args, "KKiKf", &to, &bytes, &dtype, &seed, &sigma)) return NULL;
  if (!to || !bytes || dtype < F32 || dtype > BF16 || bytes % (unsigned)BYTES[dtype])
    return PyErr_Format(PyExc_ValueError, "normal fills whole f32, f16 or bf16 values, got %llu bytes", bytes);
  if (!over_memory((pool *)self, JOB_NORMAL, NULL, (u8 *)(uintptr_t)to, bytes, dtype, seed, sigma, NULL)) return NULL;
  Py_RETURN_NONE;
}

// layer(hidden, inner, (3 dtypes), (3 offsets), (3 bias offsets or -1), activation, alpha, limit, rounds) -> handle
static PyObject *pool_layer(PyObject *self, PyObject *args) {
  pool *p = (pool *)self;
  layer l;
  Py_ssize_t hidden, inner, offset[3];
  long long bias[3];
  int rounds;
  if (!usable(p, true)) return NULL;
  if (!PyArg_ParseTuple(args, "nn(iii)(nnn)(LLL)iffp", &hidden, &inner, &l.dtype[0], &l.dtype[1], &l.dtype[2],
                        &offset[0], &offset[1], &offset[2], &bias[0], &bias[1], &bias[2], &l.activation, &l.alpha,
                        &l.limit, &rounds))
    return NULL;
  bool right = hidden > 0 && inner > 0 && l.activation >= 0 && l.activation < N_ACTIVATIONS;
  for (int i = 0; i < 3; i++) {
    right = right && l.dtype[i] >= 0 && l.dtype[i] < N_DTYPES && offset[i] >= 0 && bias[i] >= -1;
    if (!right) break;
    right = (i == 2 ? inner : hidden) % BLOCK[l.dtype[i]] == 0;
    l.offset[i] = (size_t)offset[i];
    l.bias[i] = bias[i];
  }
  if (rounds) right = right && hidden % 32 == 0 && inner % 32 == 0;
  if (!right) return PyErr_Format(PyExc_ValueError, "not a layer that the cold chain can compute");
  l.hidden = (size_t)hidden;
  l.inner = (size_t)inner;
  l.rounds = rounds;
  layer *larger = realloc(p->layers, sizeof *larger * (size_t)(p->n_layers + 1));
  if (!larger) return PyErr_NoMemory();
  p->layers = larger;
  p->layers[p->n_layers] = l;
  return PyLong_FromLong(p->n_layers++);
}

static const kernels *find_variant(const char *name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (has_avx512 && !strcmp(name, "avx512")) return &kernels_avx512;
  if (has_avx2 && !strcmp(name, "avx2")) return &kernels_avx2;
#elif defined(__aarch64__)
  if (!strcmp(name, "neon")) return &kernels_neon;
#endif
  return strcmp(name, "plain") ? NULL : &kernels_plain;
}

static PyObject *module_variants(PyObject *self, PyObject *unused) {
  (void)self, (void)unused;
  static const char *const names[] = {"avx512", "avx2", "neon", "plain"};  // the best first
  PyObject *found = PyList_New(0);
  for (size_t i = 0; found && i < sizeof names / sizeof *names; i++) {
    if (!find_variant(names[i])) continue;
    PyObject *name = PyUnicode_FromString(names[i]);
    if (!name || PyList_Append(found, name) < 0) Py_CLEAR(found);
    Py_XDECREF(name);
  }
  return found;
}

static void free_memory(pool *p) {
  if (p->ring)
    for (int i = 0; i < RING; i++) {
      free(p->ring[i].rows);
      free(p->ring[i].scratch);
    }
  free(p->ring);
  free(p->threads);
  free(p->cores);
  free(p->layers);
  free(p->failures);
}

static void pool_dealloc(PyObject *self) {
  pool *p = (pool *)self;
  PyTypeObject *type = Py_TYPE(self);
  const bool ours = p->generation == generation;
  if (p->ring && p->threads && !p->closed) shut(p);
  if (ours || p->closed) free_memory(p);  // after a fork the parent's locks may be held for ever: nothing is touched
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

// Pool(threads, spin_us, cores, variant): cores is a tuple of `threads` core numbers, or None
static PyObject *pool_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  int n_threads;
  double spin_us;
  PyObject *cores;
  const char *variant;
  static char *names[] = {"threads", "spin_us", "cores", "variant", NULL};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "idOs", names, &n_threads, &spin_us, &cores, &variant)) return NULL;
  if (n_threads < 1) return PyErr_Format(PyExc_ValueError, "%d threads: at least 1", n_threads);
  const kernels *chosen = find_variant(variant);
  if (!chosen) return PyErr_Format(PyExc_ValueError, "this processor has no variant '%s'", variant);
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  pool *p = (pool *)allocate(type, 0);  // zeroed
  if (!p) return NULL;
  p->closed = true;  // until there are threads to join
  p->generation = generation;
  p->kernels = chosen;
  p->spin_s = spin_us * 1e-6;
  p->fail_piece = -1;
  p->ring = calloc(RING, sizeof *p->ring);
  p->threads = calloc((size_t)n_threads, sizeof *p->threads);
  if (!p->ring || !p->threads) goto no_memory;
  if (cores != Py_None) {
    p->cores = calloc((size_t)n_threads, sizeof *p->cores);
    if (!p->cores) goto no_memory;
    for (int i = 0; i < n_threads; i++) {
      PyObject *core = PySequence_GetItem(cores, i);
      const long number = core ? PyLong_AsLong(core) : -1;
      Py_XDECREF(core);
      if (number < 0) {
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "core %ld does not exist", number);
        goto bad;
      }
      p->cores[i] = (int)number;
    }
  }
  pthread_mutex_init(&p->lock, NULL);
  pthread_mutex_init(&p->submitting, NULL);
  pthread_cond_init(&p->wake, NULL);
  pthread_cond_init(&p->landed, NULL);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the interpreter's threads
  int failed = 0;
  while (p->n_threads < n_threads && !failed) {
    thread_start *start = malloc(sizeof *start);
    if (!start) break;
    *start = (thread_start){p, p->n_threads};
    failed = pthread_create(&p->threads[p->n_threads], NULL, thread_main, start);
    if (failed) free(start);
    else p->n_threads++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  p->closed = false;
  if (p->n_threads < n_threads) {
    PyErr_Format(PyExc_OSError, "only %d of %d threads could be started", p->n_threads, n_threads);
    goto bad;
  }
  return (PyObject *)p;

no_memory:
  PyErr_NoMemory();
bad:
  Py_DECREF(p);
  return NULL;
}

static PyMethodDef pool_methods[] = {
    {"layer", pool_layer, METH_VARARGS,
     "layer(hidden, inner, dtypes, offsets, biases, activation, alpha, limit, rounds) -> handle"},
    {"submit", (PyCFunction)(void (*)(void))pool_submit, METH_FASTCALL,
     "submit(layer, rows, offsets, tokens, x, n_tokens, out, places, n_out) -> ticket"},
    {"wait", pool_wait, METH_O, "wait(ticket): until the job is finished; raises if it failed"},
    {"done", pool_done, METH_O, "done(ticket) -> bool"},
    {"times", pool_times, METH_O, "times(ticket) -> (began, ended), seconds of CLOCK_MONOTONIC"},
    {"close", pool_close, METH_NOARGS, "finishes what is queued and joins the threads"},
    {"fail_next", pool_fail_next, METH_O, "fail_next(piece): the next job fails at that piece of its work (for tests)"},
    {"read", pool_read, METH_VARARGS, "read(address, bytes) -> xor of the 8-byte words"},
    {"copy", pool_copy, METH_VARARGS, "copy(to, from, bytes)"},
    {"normal", pool_normal, METH_VARARGS, "normal(address, bytes, dtype, seed, sigma)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pool_slots[] = {
    {Py_tp_new, pool_new},
    {Py_tp_dealloc, pool_dealloc},
    {Py_tp_methods, pool_methods},
    {Py_tp_doc, "Threads that compute jobs in order. cold.py is its face; call that."},
    {0, NULL},
};
static PyType_Spec pool_spec = {
    .name = "slotwise.executor._cold.Pool",
    .basicsize = sizeof(pool),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = pool_slots,
};

static PyMethodDef module_methods[] = {
    {"variants", module_variants, METH_NOARGS, "names of the variants that this processor can run, the best first"},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *module) {
  static bool watched;
  if (!watched) {
    for (int e = 0; e < 256; e++) MXFP4_SCALES[e] = as_float(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23);
    if (pthread_atfork(NULL, NULL, forked)) {
      PyErr_SetString(PyExc_OSError, "pthread_atfork failed");
      return -1;
    }
    watched = true;
  }
  PyObject *type = PyType_FromSpec(&pool_spec);
  if (!type) return -1;
  const int failed = PyModule_AddObjectRef(module, "Pool", type);
  Py_DECREF(type);
  return failed;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, module_exec}, {0, NULL}};
static struct PyModuleDef module_def = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_cold",
    .m_doc = "The cold chain and its worker in C; see cold.py.",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__cold(void) { return PyModuleDef_Init(&module_def); }

#else  // VARIANT: ------------------------------------------------------------------------------------------- Kernels

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(base) JOIN(base, VARIANT)

// What a variant brings: a vector type of W floats and its operations; `head`, which reads the scales of the weights
// that share them; `weights`, which unpacks W weights in registers. Weights lie in chunks: `weights` is asked for
// vector v of chunk c of the block whose head was read.
#define vec NAME(vec)
#define state NAME(state)
#define zero NAME(zero)
#define load NAME(load)
#define fma NAME(fma)
#define total_of_4 NAME(total_of_4)
#define head NAME(head)
#define weights NAME(weights)
#define half_of NAME(half_of)
#define turn NAME(turn)
#define dots NAME(dots)

#if IS_AVX512

enum { NAME(W) = 16 };
#define W NAME(W)
typedef __m512 vec;
INLINE vec zero(void) { return _mm512_setzero_ps(); }
#define HOLD(v) __asm__("" : "+v"(v))
INLINE vec load(const float *p) { return _mm512_loadu_ps(p); }
INLINE vec fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
// Four sums at once. Lanes of 128 bits are transposed while they are added: (0 + 2) + (1 + 3) of each.
INLINE __m128 NAME(quarter)(__m256 v) { return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); }
INLINE void NAME(transposed_total)(__m128 a, __m128 b, __m128 c, __m128 d, float *out) {
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}
INLINE __m256 NAME(half_total)(vec v) { return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)); }
INLINE void total_of_4(const vec *v, float *out) {
  NAME(transposed_total)(NAME(quarter)(NAME(half_total)(v[0])), NAME(quarter)(NAME(half_total)(v[1])),
                         NAME(quarter)(NAME(half_total)(v[2])), NAME(quarter)(NAME(half_total)(v[3])), out);
}
INLINE float half_of(const u8 *p) { return _cvtsh_ss(get16(p)); }
INLINE vec NAME(half_everywhere)(const u8 *p) { return _mm512_cvtph_ps(_mm256_set1_epi16((short)get16(p))); }

typedef struct {
  const u8 *p;
  vec table;            // of the 16 values that a nibble can mean, or the scale in every lane
  alignas(64) float a[16], b[16];  // scales (and minima) of the sub-blocks
} state;

INLINE vec NAME(nibbles)(void) {
  return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
INLINE __m512i NAME(bytes)(const u8 *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }

INLINE void head(const int dtype, state *s, const u8 *p) {
  s->p = p;
  if (dtype == Q8_0) s->table = NAME(half_everywhere)(p);
  if (dtype == Q4_0)
    s->table = _mm512_mul_ps(_mm512_sub_ps(NAME(nibbles)(), _mm512_set1_ps(8)), NAME(half_everywhere)(p));
  if (dtype == MXFP4) s->table = _mm512_mul_ps(_mm512_loadu_ps(FP4_FLOATS), _mm512_set1_ps(mxfp4_scale(*p)));
  if (dtype == Q4_K) {  // q4_k_scales in lanes: 0-7 become the scales, 8-15 the minima
    const __m512i words = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));  // halves, a, b, c in every four
    const __m512i low_of = _mm512_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3, 2, 2, 2, 2, 3, 3, 3, 3);
    const __m512i low_by = _mm512_setr_epi32(0, 8, 16, 24, 0, 8, 16, 24, 0, 8, 16, 24, 4, 12, 20, 28);
    const __m512i low_bits = _mm512_setr_epi32(63, 63, 63, 63, 15, 15, 15, 15, 63, 63, 63, 63, 15, 15, 15, 15);
    const __m512i high_of = _mm512_setr_epi32(1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2);
    const __m512i high_by = _mm512_setr_epi32(0, 0, 0, 0, 2, 10, 18, 26, 0, 0, 0, 0, 2, 10, 18, 26);
    const __m512i high_bits = _mm512_setr_epi32(0, 0, 0, 0, 48, 48, 48, 48, 0, 0, 0, 0, 48, 48, 48, 48);
    const __m512i low = _mm512_and_si512(_mm512_srlv_epi32(_mm512_permutexvar_epi32(low_of, words), low_by), low_bits);
    const __m512i high = _mm512_srlv_epi32(_mm512_permutexvar_epi32(high_of, words), high_by);
    const __m512i six_bits = _mm512_ternarylogic_epi32(low, high, high_bits, 0xf8);  // a | (b & c)
    const __m512i d_of = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const vec both = _mm512_permutexvar_ps(d_of, _mm512_cvtph_ps(_mm512_castsi512_si256(words)));
    _mm512_store_ps(s->a, _mm512_mul_ps(_mm512_cvtepi32_ps(six_bits), both));
  }
  if (dtype == Q6_K) {
    const __m512i scales = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p + 192)));
    const vec scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(scales), NAME(half_everywhere)(p + 208));
    _mm512_store_ps(s->a, scaled);
    _mm512_store_ps(s->b, _mm512_mul_ps(scaled, _mm512_set1_ps(-32)));
  }
}

INLINE vec weights(const int dtype, const state *s, int c, const int v) {
  const u8 *p = s->p;
  if (dtype == F32) return _mm512_loadu_ps((const float *)(p + 64 * v));
  if (dtype == F16) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(p + 32 * v)));
  if (dtype == BF16) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(p + 32 * v)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
  if (dtype == Q8_0) {
    const __m512i q = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(p + 2 + 16 * v)));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(q), s->table);
  }
  if (dtype == Q4_0 || dtype == MXFP4) {  // the permutation looks at the low four bits of each lane only
    const __m512i q = NAME(bytes)(p + (dtype == Q4_0 ? 2 : 1));
    return _mm512_permutexvar_ps(v ? _mm512_srli_epi32(q, 4) : q, s->table);
  }
  if (dtype == Q4_K) {
    const int sub = 2 * c + v / 2;
    const vec table = _mm512_fmsub_ps(NAME(nibbles)(), _mm512_set1_ps(s->a[sub]), _mm512_set1_ps(s->a[8 + sub]));
    const __m512i q = NAME(bytes)(p + 16 + 32 * c + 16 * (v % 2));
    return _mm512_permutexvar_ps(v / 2 ? _mm512_srli_epi32(q, 4) : q, table);
  }
  const int quarter = v / 2, sub = 8 * c + v;
  const __m512i low = NAME(bytes)(p + 64 * c + 32 * (quarter % 2) + 16 * (v % 2));
  const __m512i top = NAME(bytes)(p + 128 + 32 * c + 16 * (v % 2));
  const __m512i high = quarter == 0 ? _mm512_slli_epi32(top, 4) : quarter == 1 ? _mm512_slli_epi32(top, 2)
                     : quarter == 2 ? top : _mm512_srli_epi32(top, 2);
  const __m512i q = _mm512_ternarylogic_epi32(_mm512_and_si512(quarter / 2 ? _mm512_srli_epi32(low, 4) : low, _mm512_set1_epi32(15)),
                                              high, _mm512_set1_epi32(0x30), 0xf8);  // a | (b & c)
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(q), _mm512_set1_ps(s->a[sub]), _mm512_set1_ps(s->b[sub]));
}

#elif IS_AVX2

enum { NAME(W) = 8 };
#define W NAME(W)
typedef __m256 vec;
INLINE vec zero(void) { return _mm256_setzero_ps(); }
#define HOLD(v) __asm__("" : "+x"(v))
INLINE vec load(const float *p) { return _mm256_loadu_ps(p); }
INLINE vec fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
// As for avx512.
INLINE __m128 NAME(quarter)(__m256 v) { return _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)); }
INLINE void NAME(transposed_total)(__m128 a, __m128 b, __m128 c, __m128 d, float *out) {
  const __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
  const __m128 cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
  _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}
INLINE void total_of_4(const vec *v, float *out) {
  NAME(transposed_total)(NAME(quarter)(v[0]), NAME(quarter)(v[1]), NAME(quarter)(v[2]), NAME(quarter)(v[3]), out);
}
INLINE float half_of(const u8 *p) { return _cvtsh_ss(get16(p)); }

typedef struct {
  const u8 *p;
  vec scale;
  alignas(32) float a[16], b[16];
} state;

INLINE __m256i NAME(bytes)(const u8 *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }

INLINE void head(const int dtype, state *s, const u8 *p) {
  s->p = p;
  if (dtype == Q8_0 || dtype == Q4_0) s->scale = _mm256_set1_ps(half_of(p));
  if (dtype == MXFP4) s->scale = _mm256_set1_ps(mxfp4_scale(*p));
  if (dtype == Q4_K) {
    u8 scales[16];
    q4_k_scales(p + 4, scales);
    _mm256_store_ps(s->a, _mm256_mul_ps(_mm256_cvtepi32_ps(NAME(bytes)(scales)), _mm256_set1_ps(half_of(p))));
    _mm256_store_ps(s->b, _mm256_mul_ps(_mm256_cvtepi32_ps(NAME(bytes)(scales + 8)), _mm256_set1_ps(half_of(p + 2))));
  }
  if (dtype == Q6_K)
    for (int i = 0; i < 16; i += 8) {
      const __m256i scales = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 192 + i)));
      const vec scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(scales), _mm256_set1_ps(half_of(p + 208)));
      _mm256_store_ps(s->a + i, scaled);
      _mm256_store_ps(s->b + i, _mm256_mul_ps(scaled, _mm256_set1_ps(-32)));
    }
}

INLINE vec weights(const int dtype, const state *s, int c, const int v) {
  const u8 *p = s->p;
  const __m256i low_bits = _mm256_set1_epi32(15);
  if (dtype == F32) return _mm256_loadu_ps((const float *)(p + 32 * v));
  if (dtype == F16) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 16 * v)));
  if (dtype == BF16) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 16 * v)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  if (dtype == Q8_0) {
    const __m256i q = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 2 + 8 * v)));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(q), s->scale);
  }
  if (dtype == Q4_0) {
    const __m256i q = NAME(bytes)(p + 2 + 8 * (v % 2));
    const __m256i nibble = v / 2 ? _mm256_srli_epi32(q, 4) : _mm256_and_si256(q, low_bits);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(nibble, _mm256_set1_epi32(8))), s->scale);
  }
  if (dtype == MXFP4) {
    const __m128i q = _mm_loadl_epi64((const __m128i *)(p + 1 + 8 * (v % 2)));
    const __m128i nibble = _mm_and_si128(v / 2 ? _mm_srli_epi16(q, 4) : q, _mm_set1_epi8(15));
    const __m128i value = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)FP4_BYTES), nibble);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(value)), s->scale);
  }
  if (dtype == Q4_K) {
    const int sub = 2 * c + v / 4;
    const __m256i q = NAME(bytes)(p + 16 + 32 * c + 8 * (v % 4));
    const __m256i nibble = v / 4 ? _mm256_srli_epi32(q, 4) : _mm256_and_si256(q, low_bits);
    return _mm256_fmsub_ps(_mm256_cvtepi32_ps(nibble), _mm256_set1_ps(s->a[sub]), _mm256_set1_ps(s->b[sub]));
  }
  const int quarter = v / 4, sub = 8 * c + v / 2;
  const __m256i low = NAME(bytes)(p + 64 * c + 32 * (quarter % 2) + 8 * (v % 4));
  const __m256i top = NAME(bytes)(p + 128 + 32 * c + 8 * (v % 4));
  const __m256i high = quarter == 0 ? _mm256_slli_epi32(top, 4) : quarter == 1 ? _mm256_slli_epi32(top, 2)
                     : quarter == 2 ? top : _mm256_srli_epi32(top, 2);
  const __m256i q = _mm256_or_si256(quarter / 2 ? _mm256_srli_epi32(low, 4) : _mm256_and_si256(low, low_bits),
                                    _mm256_and_si256(high, _mm256_set1_epi32(0x30)));
  return _mm256_fmadd_ps(_mm256_cvtepi32_ps(q), _mm256_set1_ps(s->a[sub]), _mm256_set1_ps(s->b[sub]));
}

#else  // NEON, plain: a chunk is unpacked to floats by loops that the compiler turns into vectors

enum { NAME(W) = 4 };
#define W NAME(W)
#define HOLD(v) (void)0
#if IS_NEON
typedef float32x4_t vec;
INLINE vec zero(void) { return vdupq_n_f32(0); }
INLINE vec load(const float *p) { return vld1q_f32(p); }
INLINE vec fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
INLINE float half_of(const u8 *p) {
  const uint16_t bits = get16(p);
  __fp16 half;
  memcpy(&half, &bits, 2);
  return (float)half;
}
#else
typedef float vec __attribute__((vector_size(16)));
INLINE vec zero(void) { return (vec){0, 0, 0, 0}; }
INLINE vec load(const float *p) { vec v; memcpy(&v, p, 16); return v; }
INLINE vec fma(vec a, vec b, vec c) { return a * b + c; }  // two roundings: -ffp-contract=off
INLINE float half_of(const u8 *p) { return half_bits(get16(p)); }
#endif
INLINE void total_of_4(const vec *v, float *out) {
  for (int i = 0; i < 4; i++) out[i] = (v[i][0] + v[i][2]) + (v[i][1] + v[i][3]);
}

typedef struct {
  const u8 *p;
  float w[256];
} state;

INLINE void head(const int dtype, state *s, const u8 *p) {
  float *w = s->w;
  s->p = p;
  if (dtype == F32) memcpy(w, p, 128);
  if (dtype == F16)
    for (int i = 0; i < 32; i++) w[i] = half_of(p + 2 * i);
  if (dtype == BF16)
    for (int i = 0; i < 32; i++) w[i] = as_float((uint32_t)get16(p + 2 * i) << 16);
  if (dtype == Q8_0) {
    const float d = half_of(p);
    for (int i = 0; i < 32; i++) w[i] = (float)(int8_t)p[2 + i] * d;
  }
  if (dtype == Q4_0) {
    const float d = half_of(p);
    for (int i = 0; i < 16; i++) w[i] = (float)((p[2 + i] & 15) - 8) * d;
    for (int i = 0; i < 16; i++) w[16 + i] = (float)((p[2 + i] >> 4) - 8) * d;
  }
  if (dtype == MXFP4) {
    const float d = mxfp4_scale(*p);
    for (int i = 0; i < 16; i++) w[i] = (float)FP4_BYTES[p[1 + i] & 15] * d;
    for (int i = 0; i < 16; i++) w[16 + i] = (float)FP4_BYTES[p[1 + i] >> 4] * d;
  }
  if (dtype == Q4_K) {
    u8 scales[16];
    q4_k_scales(p + 4, scales);
    const float d = half_of(p), d_min = half_of(p + 2);
    for (int sub = 0; sub < 8; sub++) {
      const u8 *q = p + 16 + 32 * (sub / 2);
      const float a = d * (float)scales[sub], b = d_min * (float)scales[8 + sub];
      for (int i = 0; i < 32; i++) w[32 * sub + i] = (float)(q[i] >> 4 * (sub % 2) & 15) * a - b;
    }
  }
  if (dtype == Q6_K) {
    const float d = half_of(p + 208);
    for (int sub = 0; sub < 16; sub++) {
      const int half = sub / 8, quarter = sub % 8 / 2, at = 16 * (sub % 2);
      const u8 *low = p + 64 * half + 32 * (quarter % 2) + at, *top = p + 128 + 32 * half + at;
      const float a = d * (float)(int8_t)p[192 + sub];
      for (int i = 0; i < 16; i++)
        w[16 * sub + i] =
            (float)(((low[i] >> 4 * (quarter / 2) & 15) | (top[i] >> 2 * quarter & 3) << 4) - 32) * a;
    }
  }
}

INLINE vec weights(const int dtype, const state *s, int c, const int v) {
  const int chunk = dtype == Q4_K ? 64 : dtype == Q6_K ? 128 : 32;
  return load(s->w + c * chunk + W * v);
}

#endif  // the variants

// Asks for the rows that come next in the order of their addresses, a stretch for each stretch that is computed.
#define prefetch_next NAME(prefetch_next)
INLINE void prefetch_next(const u8 *from, const size_t bytes) {
  UNROLL for (size_t line = 0; line < bytes; line += 64) __builtin_prefetch(from + line, 0, 3);
}

// n blocks of R rows times the same inputs of T tokens, from block b on. Arrays have the greatest size, not R or T: those
// are constants only after inlining, and an array of variable length would keep the sums in memory, not in registers.
INLINE void turn(const int dtype, const int T, const int R, const int n, const u8 *const *row, const float *const *x,
                 size_t b, vec sums[MAX_R][MAX_T]) {
  const int block = dtype >= Q4_K ? 256 : 32, chunk = dtype == Q4_K ? 64 : dtype == Q6_K ? 128 : 32;
  const size_t bytes = STRETCH(dtype);
  UNROLL for (int i = 0; i < n; i++) {
    state heads[MAX_R];
    UNROLL for (int r = 0; r < R; r++) head(dtype, &heads[r], row[r] + (b + (size_t)i) * bytes);
    for (int c = 0; c < block / chunk; c++)
      UNROLL for (int v = 0; v < chunk / W; v++) {
        vec these[MAX_R];
        UNROLL for (int r = 0; r < R; r++) these[r] = weights(dtype, &heads[r], c, v);
        UNROLL for (int t = 0; t < T; t++) {
          vec xs = load(x[t] + b * (size_t)block + (size_t)(i * block + c * chunk + W * v));
          if (R > 1) HOLD(xs);  // read once for all rows: the compiler would read it again for each
          UNROLL for (int r = 0; r < R; r++) sums[r][t] = fma(these[r], xs, sums[r][t]);
        }
      }
  }
}

// R rows with T tokens at a time: R * T sums grow side by side, so T = 1 hides the latency of the additions behind rows
// and T = 8 reads each weight once for all tokens. Rows past the end repeat the last; their sums are dropped.
INLINE void dots(const int dtype, const int T, const int R, const u8 *w, size_t k, int n_rows,
                 const float *const *x, float *out) {
  const int block = dtype >= Q4_K ? 256 : 32;    // weights under one head
  const int per_turn = dtype >= Q4_K ? 1 : 4;    // blocks between two rounds of prefetching
  const size_t bytes = STRETCH(dtype), stride = row_stride(dtype, k), blocks = k / (size_t)block;
  const u8 *end = w + (size_t)n_rows * stride;
  for (int i = 0; i < n_rows; i += R) {
    const u8 *row[MAX_R];
    vec sums[MAX_R][MAX_T];
    UNROLL for (int r = 0; r < R; r++) {
      row[r] = w + (size_t)(i + r < n_rows ? i + r : n_rows - 1) * stride;
      UNROLL for (int t = 0; t < T; t++) sums[r][t] = zero();
    }
    const bool more = i + R < n_rows;
    const u8 *ahead = row[0] + (R * stride > 8192 ? R * stride : 8192);  // measured: less comes too late
    size_t b = 0;
    for (; b + per_turn <= blocks; b += per_turn, ahead += R * per_turn * bytes) {
      if (ahead < end) prefetch_next(ahead, R * per_turn * bytes);
      turn(dtype, T, R, per_turn, row, x, b, sums);
    }
    if (per_turn > 1)
      for (; b < blocks; b++) turn(dtype, T, R, 1, row, x, b, sums);
    const size_t rest = k - blocks * (size_t)block;  // only f32, f16 and bf16 have one: padded with zeros
    if (dtype <= BF16 && rest) {
      UNROLL for (int r = 0; r < R; r++) {
        u8 padded[128] = {0};
        memcpy(padded, row[r] + blocks * bytes, rest * (size_t)BYTES[dtype]);
        state last;
        head(dtype, &last, padded);
        UNROLL for (int t = 0; t < T; t++) {
          float xs[32] = {0};
          memcpy(xs, x[t] + blocks * 32, rest * sizeof *xs);
          UNROLL for (int v = 0; v < 32 / W; v++)
            sums[r][t] = fma(weights(dtype, &last, 0, v), load(xs + W * v), sums[r][t]);
        }
      }
    }
    float ends[MAX_R * MAX_T];  // [R, T]
    vec flat[MAX_R * MAX_T];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int t = 0; t < T; t++) flat[r * T + t] = sums[r][t];
    UNROLL for (int s = R * T; s % 4; s++) flat[s] = zero();
    UNROLL for (int s = 0; s < R * T; s += 4) total_of_4(flat + s, ends + s);
    memcpy(out + i * T, ends, sizeof *ends * (size_t)((more ? R : n_rows - i) * T));
  }
}

#if IS_AVX512
enum { NAME(R_1) = 4, NAME(R_1_K) = 4, NAME(R_2) = 4, NAME(R_4) = 4, NAME(R_8) = 3 };
#elif IS_AVX2
enum { NAME(R_1) = 4, NAME(R_1_K) = 2, NAME(R_2) = 2, NAME(R_4) = 2, NAME(R_8) = 1 };  // 16 registers
#else
enum { NAME(R_1) = 4, NAME(R_1_K) = 2, NAME(R_2) = 2, NAME(R_4) = 1, NAME(R_8) = 1 };
#endif

// One function per dtype, so that everything inside is a constant.
#define DOTS_OF(dtype)                                                                                            \
  static void NAME(dots_##dtype)(const u8 *w, size_t k, int n_rows, const float *const *x, int n_t, float *out) { \
    if (n_t == 1) dots(dtype, 1, dtype < Q4_K ? NAME(R_1) : NAME(R_1_K), w, k, n_rows, x, out);                   \
    else if (n_t == 2) dots(dtype, 2, NAME(R_2), w, k, n_rows, x, out);                                           \
    else if (n_t == 4) dots(dtype, 4, NAME(R_4), w, k, n_rows, x, out);                                           \
    else dots(dtype, 8, NAME(R_8), w, k, n_rows, x, out);                                                         \
  }
DOTS_OF(F32)
DOTS_OF(F16)
DOTS_OF(BF16)
DOTS_OF(Q8_0)
DOTS_OF(Q4_0)
DOTS_OF(MXFP4)
DOTS_OF(Q4_K)
DOTS_OF(Q6_K)

static void NAME(rows)(int dtype, const u8 *w, size_t k, int n_rows, const float *const *x, int n_t, float *out) {
  static void (*const of[N_DTYPES])(const u8 *, size_t, int, const float *const *, int, float *) = {
      [F32] = NAME(dots_F32),   [F16] = NAME(dots_F16),     [BF16] = NAME(dots_BF16), [Q8_0] = NAME(dots_Q8_0),
      [Q4_0] = NAME(dots_Q4_0), [MXFP4] = NAME(dots_MXFP4), [Q4_K] = NAME(dots_Q4_K), [Q6_K] = NAME(dots_Q6_K)};
  of[dtype](w, k, n_rows, x, n_t, out);
}

// The option that rounds activations to int8: the codes of 32 weights times 32 rounded activations are summed exactly in
// integers, then scaled and added in float32, again in one fixed order for a row and a token.
#if IS_AVX512 || IS_AVX2

#define codes_t __m256i
#define lanes_t __m256

typedef struct {
  state head;  // scales of the weights, of Q4_K and Q6_K those of all sub-blocks
  float scale;
} NAME(scales_t);
#define scales_t NAME(scales_t)
#if IS_AVX512
#define MINIMA(head) ((head)->a + 8)
#else
#define MINIMA(head) ((head)->b)
#endif

INLINE void NAME(scales)(const int dtype, scales_t *s, const u8 *p) {
  if (dtype >= Q4_K) head(dtype, &s->head, p);
  else s->scale = dtype == MXFP4 ? mxfp4_scale(*p) : half_of(p);
}

// Scales of the weights times scales of the activations, for a whole block; of Q4_K also what the minima take away.
INLINE void NAME(products)(const int dtype, const scales_t *s, const rounded *x, size_t at, float *by, lanes_t *minima) {
  if (dtype < Q4_K) {
    by[0] = s->scale * x->scale[at];
    return;
  }
  const __m256 scales = _mm256_loadu_ps(x->scale + at);
  if (dtype == Q4_K) {
    _mm256_storeu_ps(by, _mm256_mul_ps(_mm256_load_ps(s->head.a), scales));
    *minima = _mm256_fmadd_ps(_mm256_load_ps(MINIMA(&s->head)), _mm256_loadu_ps(x->sum + at), *minima);
    return;
  }
  const __m256 first = _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
  const __m256 second = _mm256_permutevar8x32_ps(scales, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7));
  _mm256_storeu_ps(by, _mm256_mul_ps(_mm256_load_ps(s->head.a), first));
  _mm256_storeu_ps(by + 8, _mm256_mul_ps(_mm256_load_ps(s->head.a + 8), second));
}

// The 32 weights of sub-block `sub`, as bytes: signed, but for Q4_K, whose nibbles count from a minimum.
INLINE codes_t NAME(codes)(const int dtype, const u8 *p, const int sub) {
  const __m256i low_bits = _mm256_set1_epi8(15);
  if (dtype == Q8_0) return _mm256_loadu_si256((const __m256i *)(p + 2));
  if (dtype == Q4_0 || dtype == MXFP4) {
    const __m128i q = _mm_loadu_si128((const __m128i *)(p + (dtype == Q4_0 ? 2 : 1)));
    const __m256i nibbles = _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(q, 4), q), low_bits);
    if (dtype == Q4_0) return _mm256_sub_epi8(nibbles, _mm256_set1_epi8(8));
    return _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)FP4_BYTES), nibbles);
  }
  if (dtype == Q4_K) {
    const __m256i q = _mm256_loadu_si256((const __m256i *)(p + 16 + 32 * (sub / 2)));
    return _mm256_and_si256(sub % 2 ? _mm256_srli_epi16(q, 4) : q, low_bits);
  }
  const int quarter = sub % 4;
  const __m256i low = _mm256_loadu_si256((const __m256i *)(p + 64 * (sub / 4) + 32 * (quarter % 2)));
  const __m256i top = _mm256_loadu_si256((const __m256i *)(p + 128 + 32 * (sub / 4)));
  const __m256i high = quarter == 0 ? _mm256_slli_epi16(top, 4) : quarter == 1 ? _mm256_slli_epi16(top, 2)
                     : quarter == 2 ? top : _mm256_srli_epi16(top, 2);
  const __m256i q = _mm256_or_si256(_mm256_and_si256(quarter / 2 ? _mm256_srli_epi16(low, 4) : low, low_bits),
                                    _mm256_and_si256(high, _mm256_set1_epi8(0x30)));
  return _mm256_sub_epi8(q, _mm256_set1_epi8(32));
}

// Pairs are added in 16 bits first: 2 * 128 * 127 still fits, because rounded activations stay within 127.
INLINE lanes_t NAME(add_products)(const int dtype, codes_t codes, const int8_t *q, const float *by, int sub, lanes_t to) {
  const __m256i x = _mm256_loadu_si256((const __m256i *)q);
  const __m256i pairs = dtype == Q4_K ? _mm256_maddubs_epi16(codes, x)
                                      : _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
  const __m256 sums = _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  if (dtype != Q6_K) return _mm256_fmadd_ps(sums, _mm256_set1_ps(by[sub]), to);
  const __m256 both = _mm256_castps128_ps256(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(by + 2 * sub))));
  return _mm256_fmadd_ps(sums, _mm256_permutevar8x32_ps(both, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)), to);
}
INLINE lanes_t NAME(lanes_zero)(void) { return _mm256_setzero_ps(); }
INLINE float NAME(lanes_total)(lanes_t v) {
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

#else

typedef struct {
  int8_t w[32];
} NAME(codes_t);
#define codes_t NAME(codes_t)
#define lanes_t float

typedef struct {
  float a[16], b[8];
} NAME(scales_t);
#define scales_t NAME(scales_t)

INLINE void NAME(scales)(const int dtype, scales_t *s, const u8 *p) {
  if (dtype == Q8_0 || dtype == Q4_0) s->a[0] = half_of(p);
  if (dtype == MXFP4) s->a[0] = mxfp4_scale(*p);
  if (dtype == Q4_K) {
    u8 six_bits[16];
    q4_k_scales(p + 4, six_bits);
    const float d = half_of(p), d_min = half_of(p + 2);
    for (int i = 0; i < 8; i++) s->a[i] = d * (float)six_bits[i];
    for (int i = 0; i < 8; i++) s->b[i] = d_min * (float)six_bits[8 + i];
  }
  if (dtype == Q6_K) {
    const float d = half_of(p + 208);
    for (int i = 0; i < 16; i++) s->a[i] = d * (float)(int8_t)p[192 + i];
  }
}
INLINE void NAME(products)(const int dtype, const scales_t *s, const rounded *x, size_t at, float *by, lanes_t *minima) {
  const int n = dtype == Q6_K ? 16 : dtype == Q4_K ? 8 : 1;
  for (int i = 0; i < n; i++) by[i] = s->a[i] * x->scale[at + (size_t)(dtype == Q6_K ? i / 2 : i)];
  if (dtype == Q4_K)
    for (int i = 0; i < 8; i++) *minima += s->b[i] * x->sum[at + (size_t)i];
}

INLINE codes_t NAME(codes)(const int dtype, const u8 *p, const int sub) {
  codes_t codes;
  for (int i = 0; i < 32; i++) {
    if (dtype == Q8_0) codes.w[i] = (int8_t)p[2 + i];
    if (dtype == Q4_0) codes.w[i] = (int8_t)((p[2 + i % 16] >> i / 16 * 4 & 15) - 8);
    if (dtype == MXFP4) codes.w[i] = FP4_BYTES[p[1 + i % 16] >> i / 16 * 4 & 15];
    if (dtype == Q4_K) codes.w[i] = (int8_t)(p[16 + 32 * (sub / 2) + i] >> 4 * (sub % 2) & 15);
    if (dtype == Q6_K) {
      const int quarter = sub % 4;
      const int low = p[64 * (sub / 4) + 32 * (quarter % 2) + i] >> 4 * (quarter / 2) & 15;
      const int high = p[128 + 32 * (sub / 4) + i] >> 2 * quarter & 3;
      codes.w[i] = (int8_t)((low | high << 4) - 32);
    }
  }
  return codes;
}
INLINE lanes_t NAME(add_products)(const int dtype, codes_t codes, const int8_t *q, const float *by, int sub, lanes_t to) {
  int sums[2] = {0, 0};
  for (int i = 0; i < 16; i++) sums[0] += codes.w[i] * q[i];
  for (int i = 16; i < 32; i++) sums[1] += codes.w[i] * q[i];
  if (dtype == Q6_K) return to + ((float)sums[0] * by[2 * sub] + (float)sums[1] * by[2 * sub + 1]);
  return to + (float)(sums[0] + sums[1]) * by[sub];
}
INLINE lanes_t NAME(lanes_zero)(void) { return 0; }
INLINE float NAME(lanes_total)(lanes_t v) { return v; }

#endif

INLINE void NAME(rounded_dots)(const int dtype, const int T, const int R, const u8 *w, size_t k, int n_rows,
                               const rounded *x, int out_stride, float *out) {
  const int subs = BLOCK[dtype] / 32, per_turn = dtype >= Q4_K ? 1 : 4;
  const size_t bytes = (size_t)BYTES[dtype], stride = row_stride(dtype, k), blocks = k / (size_t)BLOCK[dtype];
  for (int i = 0; i < n_rows; i += R) {
    const u8 *row[MAX_R];
    lanes_t sums[MAX_R][MAX_T];
    lanes_t minima[MAX_R][MAX_T];
    UNROLL for (int r = 0; r < R; r++) {
      row[r] = w + (size_t)(i + r < n_rows ? i + r : n_rows - 1) * stride;
      UNROLL for (int t = 0; t < T; t++) sums[r][t] = minima[r][t] = NAME(lanes_zero)();
    }
    for (size_t b = 0; b < blocks;) {
      const size_t until = b + per_turn <= blocks ? b + per_turn : blocks;
      const u8 *ahead = row[0] + b * bytes * R + (R * stride > 8192 ? R * stride : 8192);
      if (ahead < w + (size_t)n_rows * stride) prefetch_next(ahead, R * per_turn * bytes);
      for (; b < until; b++) {
        float by[MAX_R][MAX_T][16];
        UNROLL for (int r = 0; r < R; r++) {
          scales_t scales;
          NAME(scales)(dtype, &scales, row[r] + b * bytes);
          UNROLL for (int t = 0; t < T; t++)
            NAME(products)(dtype, &scales, &x[t], b * (size_t)subs, by[r][t], &minima[r][t]);
        }
        UNROLL for (int sub = 0; sub < subs; sub++) {
          const size_t at = 32 * (b * (size_t)subs + (size_t)sub);
          UNROLL for (int r = 0; r < R; r++) {
            const codes_t these = NAME(codes)(dtype, row[r] + b * bytes, sub);
            UNROLL for (int t = 0; t < T; t++)
              sums[r][t] = NAME(add_products)(dtype, these, x[t].q + at, by[r][t], sub, sums[r][t]);
          }
        }
      }
    }
    UNROLL for (int r = 0; r < R; r++)
      if (i + r < n_rows)
        UNROLL for (int t = 0; t < T; t++) out[(i + r) * out_stride + t] =
            NAME(lanes_total)(sums[r][t]) - NAME(lanes_total)(minima[r][t]);
  }
}

#define ROUNDED_OF(dtype)                                                                                              \
  static void NAME(rounded_##dtype)(const u8 *w, size_t k, int n_rows, const rounded *x, int n_t, float *out) {        \
    if (n_t == 1) NAME(rounded_dots)(dtype, 1, 4, w, k, n_rows, x, n_t, out);                                          \
    else if (n_t == 2) NAME(rounded_dots)(dtype, 2, 2, w, k, n_rows, x, n_t, out);                                     \
    else                                                                                                               \
      for (int t = 0; t < n_t; t += 4) NAME(rounded_dots)(dtype, 4, 1, w, k, n_rows, x + t, n_t, out + t);             \
  }
ROUNDED_OF(Q8_0)
ROUNDED_OF(Q4_0)
ROUNDED_OF(MXFP4)
ROUNDED_OF(Q4_K)
ROUNDED_OF(Q6_K)

static void NAME(rounded_rows)(int dtype, const u8 *w, size_t k, int n_rows, const rounded *x, int n_t, float *out) {
  static void (*const of[N_DTYPES])(const u8 *, size_t, int, const rounded *, int, float *) = {
      [Q8_0] = NAME(rounded_Q8_0), [Q4_0] = NAME(rounded_Q4_0), [MXFP4] = NAME(rounded_MXFP4),
      [Q4_K] = NAME(rounded_Q4_K), [Q6_K] = NAME(rounded_Q6_K)};
  of[dtype](w, k, n_rows, x, n_t, out);
}

static void NAME(activate)(int kind, const float *g, const float *u, float alpha, float limit, int n, float *out) {
  if (kind == SWIGLU)
    for (int i = 0; i < n; i++) out[i] = activated(SWIGLU, g[i], u[i], alpha, limit);
  else if (kind == GEGLU)
    for (int i = 0; i < n; i++) out[i] = activated(GEGLU, g[i], u[i], alpha, limit);
  else
    for (int i = 0; i < n; i++) out[i] = activated(SWIGLU_CLAMPED, g[i], u[i], alpha, limit);
}

// Four independent streams of loads a turn, prefetched well ahead: what the memory gives, and nothing else.
static uint64_t NAME(read)(const u8 *from, size_t bytes) {
  typedef uint64_t lanes __attribute__((vector_size(W < 8 ? 16 : 4 * W)));
  enum { N = 8, TURN = N * sizeof(lanes) };
  lanes seen[N] = {{0}};
  size_t at = 0;
  for (; at + TURN <= bytes; at += TURN) {
    UNROLL for (size_t line = 0; line < TURN; line += 64) __builtin_prefetch(from + at + 4096 + line, 0, 3);
    UNROLL for (int i = 0; i < N; i++) {
      lanes v;
      memcpy(&v, from + at + (size_t)i * sizeof v, sizeof v);
      seen[i] ^= v;
    }
  }
  uint64_t all = 0;
  for (int i = 0; i < N; i++)
    for (size_t lane = 0; lane < sizeof(lanes) / 8; lane++) all ^= seen[i][lane];
  for (; at + 8 <= bytes; at += 8) {
    uint64_t v;
    memcpy(&v, from + at, 8);
    all ^= v;
  }
  return all;
}

static const kernels NAME(kernels) = {VARIANT_NAME, NAME(rows), NAME(rounded_rows), NAME(activate), NAME(read)};

#undef vec
#undef state
#undef zero
#undef load
#undef fma
#undef total_of_4
#undef head
#undef weights
#undef half_of
#undef turn
#undef dots
#undef W
#undef HOLD
#undef DOTS_OF
#undef prefetch_next
#undef ROUNDED_OF
#undef codes_t
#undef scales_t
#undef MINIMA
#undef lanes_t
#undef NAME
#undef JOIN
#undef JOIN_

#endif
