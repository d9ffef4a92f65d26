// Functions of teams of warps on sm_90a: each is one instruction, or the fixed sequence that the
// instruction set forces. Tiles in registers lie as the matrix units leave them: of the 128 threads
// of four warps, a thread has rows r and r + 8 (r = 16 * warp + lane / 4), and of every eight
// columns the pair 2 * (lane % 4): registers 4 * j + {0, 1} of row r, {2, 3} of row r + 8.

#pragma once

#include "kernel.cuh"

typedef unsigned long long tfs_barrier;
struct alignas(64) tfs_box { unsigned long long words[16]; };

TFS_DEVICE unsigned tfs_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }

template <int N, class T> TFS_DEVICE tfs_vec<T, N> &tfs_part(T *first) {
  return *reinterpret_cast<tfs_vec<T, N> *>(first);
}

// Barriers -------------------------------------------------------------------------------------

TFS_DEVICE void tfs_barrier_init(tfs_barrier *b, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(tfs_address(b)), "r"(count)
               : "memory");
}
TFS_DEVICE void tfs_fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
TFS_DEVICE void tfs_fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
TFS_DEVICE void tfs_barrier_arrive(tfs_barrier *b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(tfs_address(b)) : "memory");
}
TFS_DEVICE void tfs_barrier_arrive(tfs_barrier *b, int rank) {
  asm volatile(
      "{\n.reg .b32 far;\n"
      "mapa.shared::cluster.u32 far, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [far];\n}" ::"r"(tfs_address(b)),
      "r"(rank)
      : "memory");
}
TFS_DEVICE void tfs_barrier_expect(tfs_barrier *b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(tfs_address(b)),
               "r"(bytes)
               : "memory");
}
TFS_DEVICE void tfs_barrier_wait(tfs_barrier *b, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra OVER;\n"
      "bra AGAIN;\n"
      "OVER:\n}" ::"r"(tfs_address(b)),
      "r"(parity)
      : "memory");
}

// Copies by descriptor -------------------------------------------------------------------------

TFS_DEVICE void tfs_box_load(void *dst, const tfs_box *map, tfs_barrier *b, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4}], [%2];" ::"r"(tfs_address(dst)),
      "l"(map), "r"(tfs_address(b)), "r"(x), "r"(y)
      : "memory");
}
TFS_DEVICE void tfs_box_load(void *dst, const tfs_box *map, tfs_barrier *b, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5}], [%2];" ::"r"(tfs_address(dst)),
      "l"(map), "r"(tfs_address(b)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
TFS_DEVICE void tfs_box_cast(void *dst, const tfs_box *map, tfs_barrier *b, int mask, int x,
                             int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;" ::"r"(tfs_address(dst)),
      "l"(map), "r"(tfs_address(b)), "h"((unsigned short)mask), "r"(x), "r"(y)
      : "memory");
}
TFS_DEVICE void tfs_box_cast(void *dst, const tfs_box *map, tfs_barrier *b, int mask, int x, int y,
                             int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(tfs_address(dst)),
      "l"(map), "r"(tfs_address(b)), "h"((unsigned short)mask), "r"(x), "r"(y), "r"(z)
      : "memory");
}

TFS_DEVICE void tfs_box_store(const tfs_box *map, const void *src, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(tfs_address(src)), "r"(x), "r"(y), "r"(z)
      : "memory");
}
TFS_DEVICE void tfs_box_store(const tfs_box *map, const void *src, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(tfs_address(src)), "r"(x), "r"(y)
      : "memory");
}
TFS_DEVICE void tfs_box_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int PENDING> TFS_DEVICE void tfs_box_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(PENDING) : "memory");
}
template <int PENDING> TFS_DEVICE void tfs_box_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// Matrix products of four warps ----------------------------------------------------------------

// Rows of 128 bytes, swizzled, groups of eight rows 1024 bytes apart.
TFS_DEVICE unsigned long long tfs_matrix(const void *p) {
  const unsigned long long place = (tfs_address(p) & 0x3FFFFu) >> 4;
  return place | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
// The same data across the sum: rows of 128 bytes along the result, sixteen of them a product;
// eight rows are 1024 bytes apart, blocks of 64 elements of the result 8192.
TFS_DEVICE unsigned long long tfs_matrix_across(const void *p) {
  const unsigned long long place = (tfs_address(p) & 0x3FFFFu) >> 4;
  return place | (512ull << 16) | (64ull << 32) | (1ull << 62);
}
TFS_DEVICE void tfs_product_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
TFS_DEVICE void tfs_product_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int PENDING> TFS_DEVICE void tfs_product_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Products write registers behind the compiler's back: no use of them moves ahead of the wait.
template <int N> TFS_DEVICE void tfs_settled(tfs_vec<float, N> &sums) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sums.x[i])::"memory");
}

// Meetings and registers -----------------------------------------------------------------------

TFS_DEVICE void tfs_named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TFS_DEVICE void tfs_named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TFS_DEVICE void tfs_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
TFS_DEVICE void tfs_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
template <int COUNT> TFS_DEVICE void tfs_registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> TFS_DEVICE void tfs_registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// Tiles in registers ---------------------------------------------------------------------------

#define TFS_TILE_ROW(LANE, H) (((LANE) / 32) * 16 + ((LANE) % 32) / 4 + 8 * (H))
#define TFS_TILE_COLUMN(LANE, J) (8 * (J) + 2 * ((LANE) % 4))

template <class E, int N>
TFS_DEVICE void tfs_tile_load(tfs_vec<float, N> &dst, const E *src, long ld, int rows, int columns,
                              int lane) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int r = TFS_TILE_ROW(lane, i / 2 % 2), c = TFS_TILE_COLUMN(lane, i / 4) + i % 2;
    dst.x[i] = r < rows && c < columns ? tfs_cast<float, E>::of(src[r * ld + c]) : 0.0f;
  }
}
template <class E, int N>
TFS_DEVICE void tfs_tile_load_row(tfs_vec<float, N> &dst, const E *src, int columns, int lane) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int c = TFS_TILE_COLUMN(lane, i / 4) + i % 2;
    if (i / 2 % 2)
      dst.x[i] = dst.x[i - 2];
    else
      dst.x[i] = c < columns ? tfs_cast<float, E>::of(src[c]) : 0.0f;
  }
}
template <class E, int N>
TFS_DEVICE void tfs_tile_load_column(tfs_vec<float, N> &dst, const E *src, long step, int rows,
                                     int lane) {
  const int r = TFS_TILE_ROW(lane, 0);
  const float low = r < rows ? tfs_cast<float, E>::of(src[r * step]) : 0.0f;
  const float high = r + 8 < rows ? tfs_cast<float, E>::of(src[(r + 8) * step]) : 0.0f;
#pragma unroll
  for (int i = 0; i < N; ++i) dst.x[i] = i / 2 % 2 ? high : low;
}

template <class E, int N>
TFS_DEVICE void tfs_tile_store(E *dst, long ld, int rows, int columns,
                               const tfs_vec<float, N> &src, int lane) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int r = TFS_TILE_ROW(lane, i / 2 % 2), c = TFS_TILE_COLUMN(lane, i / 4) + i % 2;
    if (r < rows && c < columns) dst[r * ld + c] = tfs_cast<E, float>::of(src.x[i]);
  }
}

// Four threads have the pairs of one row: word j of thread t goes to place t of thread j.
TFS_DEVICE void tfs_exchange(unsigned (&w)[4], int lane) {
  const bool odd = lane & 1, upper = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const unsigned got = __shfl_xor_sync(0xFFFFFFFFu, odd ? w[i] : w[i + 1], 1);
    if (odd) w[i] = got; else w[i + 1] = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const unsigned got = __shfl_xor_sync(0xFFFFFFFFu, upper ? w[i] : w[i + 2], 2);
    if (upper) w[i] = got; else w[i + 2] = got;
  }
}

template <class E> TFS_DEVICE unsigned tfs_pair(float low, float high) {
  const E a = tfs_cast<E, float>::of(low), b = tfs_cast<E, float>::of(high);
  return (unsigned)a.bits | ((unsigned)b.bits << 16);
}
template <> __device__ __forceinline__ unsigned tfs_pair<tfs_bf16>(float low, float high) {
  unsigned out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

// Up to eight elements of one row, as one word where all of them exist.
template <class E> TFS_DEVICE void tfs_put(E *to, int columns, const unsigned (&w)[4]) {
  if (columns >= 8) {
    // Left to the compiler, the word is split and its parts shared with the other branch.
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < columns) to[i].bits = (unsigned short)(w[i / 2] >> 16 * (i % 2));
}

// Rows are aligned to 16 bytes. Where a tile has 32 columns its threads exchange pairs first.
template <class E, int N>
TFS_DEVICE void tfs_tile_store_aligned(E *dst, long ld, int rows, int columns,
                                       const tfs_vec<float, N> &src, int lane) {
  if (N == 16) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      unsigned w[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        w[j] = tfs_pair<E>(src.x[(4 * j + 2 * h) % N], src.x[(4 * j + 2 * h + 1) % N]);
      tfs_exchange(w, lane);
      const int r = TFS_TILE_ROW(lane, h), c = 8 * (lane % 4);
      if (r < rows) tfs_put(dst + r * ld + c, columns - c, w);
    }
  } else {
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const int r = TFS_TILE_ROW(lane, i / 2 % 2), c = TFS_TILE_COLUMN(lane, i / 4);
    E *const to = dst + r * ld + c;
    if (r >= rows) continue;
    if (c + 2 <= columns)
      *reinterpret_cast<unsigned *>(to) = tfs_pair<E>(src.x[i], src.x[i + 1]);
    else if (c < columns)
      *to = tfs_cast<E, float>::of(src.x[i]);
  }
  }
}
template <int N>
TFS_DEVICE void tfs_tile_store_aligned(float *dst, long ld, int rows, int columns,
                                       const tfs_vec<float, N> &src, int lane) {
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const int r = TFS_TILE_ROW(lane, i / 2 % 2), c = TFS_TILE_COLUMN(lane, i / 4);
    float *const to = dst + r * ld + c;
    if (r >= rows) continue;
    if (c + 2 <= columns)
      *reinterpret_cast<float2 *>(to) = make_float2(src.x[i], src.x[i + 1]);
    else if (c < columns)
      *to = src.x[i];
  }
}

// Tiles into shared memory: rows of 128 bytes, in the swizzle that copies of boxes know.
TFS_DEVICE unsigned tfs_swizzled(unsigned place) { return place ^ ((place >> 7 & 7) << 4); }

template <class E, int N>
TFS_DEVICE void tfs_tile_stage(E *dst, const tfs_vec<float, N> &src, int lane) {
  const unsigned first = tfs_address(dst);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    unsigned w[N / 4];
#pragma unroll
    for (int j = 0; j < N / 4; ++j)
      w[j] = tfs_pair<E>(src.x[4 * j + 2 * h], src.x[4 * j + 2 * h + 1]);
    const int r = lane / 32 * 16 + lane % 8 + 8 * h, c = lane % 32 / 8 * 8;
    if constexpr (N == 16)
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                       tfs_swizzled(first + r * 128 + c * 2)),
                   "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                   : "memory");
    else if constexpr (N == 8)
      asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(
                       tfs_swizzled(first + r * 128 + (c & 8) * 2)),
                   "r"(w[0]), "r"(w[1])
                   : "memory");
    else
      asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(
                       tfs_swizzled(first + r * 128)),
                   "r"(w[0])
                   : "memory");
  }
}

#include "warps.cuh"
