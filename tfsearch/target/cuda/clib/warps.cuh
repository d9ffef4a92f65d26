// Functions of single warps, on every architecture: copies into panels of shared memory, loads of
// fragments from there, products of fragments. Each is one instruction, or the fixed sequence that
// the instruction set forces. Included by teams.cuh.
//
// A panel has rows of PITCH bytes. Where MASK is not 0, the 16-byte pieces of a row have changed
// places: piece p of row r lies at p ^ ((r * PITCH / 128) & MASK). `base` is where row `row` begins.

#pragma once

template <int PITCH, int MASK>
TFS_DEVICE unsigned tfs_spot(const void *base, int row, int r, int bytes) {
  const unsigned change = MASK ? ((unsigned)(row + r) * PITCH / 128 & MASK) * 16 : 0;
  return tfs_address(base) + r * PITCH + (bytes ^ change);
}

// Copies -----------------------------------------------------------------------------------------

template <int BYTES> TFS_DEVICE void tfs_copy(unsigned dst, const void *src) {
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(dst), "l"(src), "n"(BYTES)
                 : "memory");
}
// The first `have` bytes; zeros follow.
template <int BYTES> TFS_DEVICE void tfs_copy_some(unsigned dst, const void *src, int have) {
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(have)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(BYTES),
                 "r"(have)
                 : "memory");
}

// As many rows of SPAN bytes as the 32 threads cover with BYTES each.
template <int BYTES, int SPAN, int PITCH, int MASK, class E>
TFS_DEVICE void tfs_copy_rows(E *base, int row, const E *src, long ld, int lane) {
  const int r = lane / (SPAN / BYTES), c = lane % (SPAN / BYTES) * BYTES;
  tfs_copy<BYTES>(tfs_spot<PITCH, MASK>(base, row, r, c), src + r * ld + c / (int)sizeof(E));
}
template <int BYTES, int SPAN, int PITCH, int MASK, class E>
TFS_DEVICE void tfs_copy_rows_some(E *base, int row, const E *src, long ld, int rows, int columns,
                               int lane) {
  const int r = lane / (SPAN / BYTES), c = lane % (SPAN / BYTES) * BYTES;
  const int left = columns * (int)sizeof(E) - c;
  const int have = r < rows && left > 0 ? (left < BYTES ? left : BYTES) : 0;
  const E *const from = have ? src + r * ld + c / (int)sizeof(E) : src;
  tfs_copy_some<BYTES>(tfs_spot<PITCH, MASK>(base, row, r, c), from, have);
}
// Elements of 16 bits at any address: 512 bytes of a panel, a pair a thread and pass.
template <int SPAN, int PITCH, int MASK, class E>
TFS_DEVICE void tfs_gather_rows(E *base, int row, const E *src, long ld, int rows, int columns,
                                 int lane) {
  constexpr int PAIRS = SPAN / 4, PASS = 32 / PAIRS;
  unsigned w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = i * PASS + lane / PAIRS, c = lane % PAIRS * 2;
    const unsigned low = r < rows && c < columns ? src[r * ld + c].bits : 0;
    const unsigned high = r < rows && c + 1 < columns ? src[r * ld + c + 1].bits : 0;
    w[i] = low | high << 16;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int r = i * PASS + lane / PAIRS, c = lane % PAIRS * 4;
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(tfs_spot<PITCH, MASK>(base, row, r, c)), "r"(w[i])
                 : "memory");
  }
}

TFS_DEVICE void tfs_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> TFS_DEVICE void tfs_copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Fragments of 16 bits ---------------------------------------------------------------------------
// Four matrices of 8 x 8. DOWN: the second one lies below the first and the third beside it, else
// the second beside the first and the third below. TURN: each is transposed.

template <int PITCH, int MASK, bool DOWN, bool TURN>
TFS_DEVICE void tfs_matrices(tfs_vec<unsigned, 4> &dst, const void *base, int row, int column,
                             int lane) {
  const int first = lane / 8 % 2 * 8, second = lane / 16 * 8;
  const int r = lane % 8 + (DOWN ? first : second), c = column + (DOWN ? second : first);
  const unsigned at = tfs_spot<PITCH, MASK>(base, row, r, c * 2);
  if constexpr (TURN)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(dst.x[0]), "=r"(dst.x[1]), "=r"(dst.x[2]), "=r"(dst.x[3])
                 : "r"(at)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(dst.x[0]), "=r"(dst.x[1]), "=r"(dst.x[2]), "=r"(dst.x[3])
                 : "r"(at)
                 : "memory");
}

#define TFS_PRODUCT(NAME) \
  TFS_DEVICE void tfs_product_##NAME(tfs_vec<float, 4> &acc, const tfs_vec<unsigned, 4> &a, \
                                     const tfs_vec<unsigned, 2> &b) { \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." #NAME "." #NAME ".f32 {%0, %1, %2, %3}, " \
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"(acc.x[0]), "+f"(acc.x[1]), "+f"(acc.x[2]), "+f"(acc.x[3]) \
        : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1])); \
  }
TFS_PRODUCT(bf16)
TFS_PRODUCT(f16)

// Fragments of 32 bits ---------------------------------------------------------------------------
// A thread has rows g and g + 8 (g = lane / 4) of a left fragment, columns 2 * (lane % 4) and the one
// beside of a right one, each with four elements along the sum: those of its sums.

TFS_DEVICE void tfs_shared_words(float *dst, unsigned at) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(dst[0]), "=f"(dst[1]), "=f"(dst[2]), "=f"(dst[3])
               : "r"(at)
               : "memory");
}
template <int PITCH, int MASK>
TFS_DEVICE void tfs_rows(tfs_vec<float, 8> &dst, const void *base, int row, int column, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
    tfs_shared_words(dst.x + 4 * h, tfs_spot<PITCH, MASK>(base, row, lane / 4 + 8 * h, column * 4));
}
template <int PITCH, int MASK>
TFS_DEVICE void tfs_columns(tfs_vec<float, 8> &dst, const void *base, int row, int column,
                            int lane) {
#pragma unroll
  for (int e = 0; e < 2; ++e)
    tfs_shared_words(dst.x + 4 * e,
                     tfs_spot<PITCH, MASK>(base, row, lane % 4 * 2 + e, column * 4));
}
template <int PITCH, int MASK>
TFS_DEVICE void tfs_rows_across(tfs_vec<float, 8> &dst, const void *base, int row, int column,
                                int lane) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int c = column + lane / 4 + i / 4 * 8;
    asm volatile("ld.shared.f32 %0, [%1];"
                 : "=f"(dst.x[i])
                 : "r"(tfs_spot<PITCH, MASK>(base, row, i % 4, c * 4))
                 : "memory");
  }
}
template <int PITCH, int MASK>
TFS_DEVICE void tfs_columns_across(tfs_vec<float, 8> &dst, const void *base, int row, int column,
                                   int lane) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int c = column + lane % 4 * 2;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(dst.x[k]), "=f"(dst.x[4 + k])
                 : "r"(tfs_spot<PITCH, MASK>(base, row, k, c * 4))
                 : "memory");
  }
}
TFS_DEVICE void tfs_product_f32(tfs_vec<float, 4> &acc, const tfs_vec<float, 8> &a,
                                const tfs_vec<float, 8> &b) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      acc.x[i] = __fmaf_rn(a.x[i / 2 * 4 + k], b.x[i % 2 * 4 + k], acc.x[i]);
}
