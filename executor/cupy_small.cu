// The small kernels beside the hot chain: join, norm, words to the host, a stand-in for attention, and the ceiling of
// reads.
//
// Each takes one structure by value, and passes griddepcontrol.wait before it touches memory, so that it may stand in
// a chain of programmatic launches: see cupy_hot.cu. Compiled with --fmad=false.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ u64 now_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}
// Past every cache that may hold an older line: the host writes here.
__device__ __forceinline__ float4 load_from_host(const float *p) {
  float4 v;
  asm volatile("ld.global.cv.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

// Until the host has counted so far. All threads of the block call it; the more blocks, the more seldom each one asks.
__device__ __forceinline__ void wait_for_host(const u32 *counter, u32 awaited) {
  if (threadIdx.x == 0)
    for (u32 seen;;) {
      asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
      if ((int)(seen - awaited) >= 0) break;
      __nanosleep(50 * gridDim.x * gridDim.y);
    }
  __syncthreads();
}

struct Merge {
  const float *hot;      // [n, k, hidden], device
  const float *cold;     // [n, k, hidden], page-locked and mapped
  const float *weights;  // [n, k]
  float *y;              // [n, hidden]
  const u32 *counter;    // page-locked: the cold results are there once it has reached `awaited`; 0: they are
  u32 n, k, hidden, awaited;
  u8 where[MAX_WHERE];   // of pair [n, k]: 0 absent, 1 in hot, 2 in cold
};

enum { AT_ONCE = 8 };

// y[t] = sum over j of weights[t, j] * out[t, j], in router order; products and sums each rounded to float32, so that
// the same join on the CPU gives the same bytes. A block is a part of one token, blockIdx.y.
extern "C" __global__ void merge(const __grid_constant__ Merge m) {
  wait_for_kernels_before();
  if (m.counter) wait_for_host(m.counter, m.awaited);
  const u32 t = blockIdx.y, h = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
  if (h >= m.hidden) return;
  float4 sum = {0, 0, 0, 0};
  for (u32 first = 0; first < m.k; first += AT_ONCE) {  // all loads of a stretch are on their way before the first sum
    float4 v[AT_ONCE];
    float w[AT_ONCE];
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
      const u32 j = first + i, pair = t * m.k + j;
      if (j >= m.k || m.where[pair] == 0) continue;
      const u64 at = (u64)pair * m.hidden + h;
      v[i] = m.where[pair] == 1 ? *(const float4 *)(m.hot + at) : load_from_host(m.cold + at);
      w[i] = m.weights[pair];
    }
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
      const u32 j = first + i;
      if (j >= m.k || m.where[t * m.k + j] == 0) continue;
      sum.x += w[i] * v[i].x, sum.y += w[i] * v[i].y, sum.z += w[i] * v[i].z, sum.w += w[i] * v[i].w;
    }
  }
  *(float4 *)(m.y + (u64)t * m.hidden + h) = sum;
}

struct Norm {
  const float *x, *y;  // [n, hidden]
  float *next;         // [n, hidden], may be x
  float epsilon;
  u32 hidden;
};

// next = v / sqrt(mean(v^2) + epsilon) with v = x + y. A block of 256 threads is a token; a fixed tree of sums.
extern "C" __global__ void rms_norm(const __grid_constant__ Norm a) {
  __shared__ float of_warp[8];
  wait_for_kernels_before();
  const u64 at = (u64)blockIdx.x * a.hidden;
  float sum = 0;
  for (u32 h = threadIdx.x; h < a.hidden; h += 256) {
    const float v = a.x[at + h] + a.y[at + h];
    sum = fmaf(v, v, sum);
  }
  for (int away = 16; away; away >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, away);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (int i = 0; i < 8; i++) sum += of_warp[i];
  const float scale = 1.0f / sqrtf(sum / (float)a.hidden + a.epsilon);
  for (u32 h = threadIdx.x; h < a.hidden; h += 256) a.next[at + h] = (a.x[at + h] + a.y[at + h]) * scale;
}

struct Tell {
  const u32 *words[TELLS];  // [count] each, device
  u32 *to[TELLS];           // [count] each, page-locked and mapped
  u32 *flag;                // page-locked and mapped; the second flag is 64 bytes on
  u32 count[TELLS], sequence;
};

__device__ __forceinline__ void send(const u32 *from, u32 *to, u32 count) {
  const u32 wide = ((u64)from | (u64)to) % 16 ? 0 : count / 4;
  for (u32 i = threadIdx.x; i < wide; i += blockDim.x) ((uint4 *)to)[i] = ((const uint4 *)from)[i];
  for (u32 i = 4 * wide + threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}
__device__ __forceinline__ void raise_flag(u32 *flag, u32 sequence) {
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(sequence) : "memory");
}

// Copies words to the host, then raises a flag: a host that reads `sequence` there reads all the words. What comes last
// has a flag of its own, so that nobody waits for it who needs the others only. One block.
extern "C" __global__ void tell(const __grid_constant__ Tell a) {
  wait_for_kernels_before();
  for (u32 i = 0; i + 1 < TELLS; i++) send(a.words[i], a.to[i], a.count[i]);
  raise_flag(a.flag, a.sequence);
  send(a.words[TELLS - 1], a.to[TELLS - 1], a.count[TELLS - 1]);
  raise_flag(a.flag + 16, a.sequence);
}

struct Busy {
  u64 ns;
};

// Holds the stream for that long: one thread that watches the clock.
extern "C" __global__ void busy(const __grid_constant__ Busy a) {
  wait_for_kernels_before();
  const u64 end = now_ns() + a.ns;
  while (now_ns() < end) __nanosleep(20);
}

struct Read {
  const uint4 *from;
  u64 pieces;  // of 16 bytes
  u32 *sink;   // [gridDim.x]
};

// Reads every byte once, eight loads of 16 bytes in flight a thread: what no chain can be faster than.
extern "C" __global__ void __launch_bounds__(512) read_all(const __grid_constant__ Read a) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  u32 all = 0;
  for (; i + 7 * step < a.pieces; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int j = 0; j < 8; j++)
      asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v[j].x), "=r"(v[j].y), "=r"(v[j].z), "=r"(v[j].w) : "l"(a.from + i + j * step));
#pragma unroll
    for (int j = 0; j < 8; j++) all ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  for (; i < a.pieces; i += step) all ^= a.from[i].x ^ a.from[i].y ^ a.from[i].z ^ a.from[i].w;
  all = __reduce_xor_sync(0xffffffffu, all);
  if (threadIdx.x % 32 == 0) atomicXor(a.sink + blockIdx.x, all);
}
