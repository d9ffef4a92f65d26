/* Argument reduction of sin and cos beyond the range of the in-line reduction. */
#ifndef TFS_MATHS_BIGARG_H
#define TFS_MATHS_BIGARG_H

__extension__ typedef unsigned __int128 tfs_u128;
__extension__ typedef __int128 tfs_i128;

/* The binary digits of 2/pi after one word of leading zeros, most significant word first. */
static const uint64_t tfs_two_over_pi[21] __attribute__((unused)) = {
    0,
    0xa2f9836e4e441529u, 0xfc2757d1f534ddc0u, 0xdb6295993c439041u, 0xfe5163abdebbc561u,
    0xb7246e3a424dd2e0u, 0x06492eea09d1921cu, 0xfe1deb1cb129a73eu, 0xe88235f52ebb4484u,
    0xe99c7026b45f7e41u, 0x3991d639835339f4u, 0x9c845f8bbdf9283bu, 0x1ff897ffde05980fu,
    0xef2f118b5a0a6d1fu, 0x6d367ecf27cb09b7u, 0x4f463f669e5fea2du, 0x7527bac7ebe5f17bu,
    0x3d0739f78a5292eau, 0x6bfb5fb11f8d5d08u, 0x56033046fc7b6babu, 0xf0cfbc209af4361du,
};

/* For finite x >= 1: returns the quadrant q (mod 4) and sets *r so that
 * x = (4n + q) * pi/2 + r with |r| <= pi/4; relative error of *r below 2^-52.
 *
 * x = m * 2^e with a 53-bit integer m.  Digits of 2/pi of weight 2^(2-e) and above contribute
 * multiples of 4 to x * 2/pi, so a window of 192 digits after them decides the result: what is cut
 * off changes x * 2/pi by less than 2^-137, and no double comes closer than 2^-62 to a multiple of
 * pi/2 (relative to which the cut is 2^-75). */
TFS_RARE uint32_t tfs_reduce_big(double x, double* r) {
  uint64_t u, w[3];
  memcpy(&u, &x, sizeof u);
  uint64_t m = (u & UINT64_C(0xfffffffffffff)) | UINT64_C(0x10000000000000);
  int at = (int)(u >> 52) - 1075 - 2 + 64, word = at >> 6, shift = at & 63;
  for (int i = 0; i < 3; ++i) {
    uint64_t hi = tfs_two_over_pi[word + i], lo = tfs_two_over_pi[word + i + 1];
    w[i] = shift ? (hi << shift) | (lo >> (64 - shift)) : hi;
  }
  tfs_u128 p0 = (tfs_u128)m * w[2];
  tfs_u128 p1 = (tfs_u128)m * w[1] + (uint64_t)(p0 >> 64);
  uint64_t p2 = m * w[0] + (uint64_t)(p1 >> 64);
  tfs_u128 turn = ((tfs_u128)p2 << 64) | (uint64_t)p1; /* x/(2 pi) mod 1, as 0.turn */
  uint32_t q = (uint32_t)(p2 >> 62);
  tfs_i128 frac = (tfs_i128)((turn << 2) | ((uint64_t)p0 >> 62)) >> 1;
  if (frac < 0) q += 1;
  double hi = (double)frac;
  double lo = (double)(frac - (tfs_i128)hi);
  double rh = hi * 0x1.921fb54442d18p+0;
  double tail = __builtin_fma(hi, 0x1.921fb54442d18p+0, -rh);
  tail = __builtin_fma(hi, 0x1.1a62633145c07p-54, tail);
  tail = __builtin_fma(lo, 0x1.921fb54442d18p+0, tail);
  *r = (rh + tail) * 0x1p-127;
  return q & 3;
}

#endif
