/* Fast f32 maths for one width (TFS_N, TFS_U, TFS_L); included once per width by maths.h.
 * Only for programs that asked for the fast accuracy class.  Bounds (relative to the exact result
 * where it is a normal number; NaN in gives NaN out everywhere):
 *
 *   fast_exp      2^-18    results below 2^-125 become 0, exp(-inf) = 0, overflow gives inf
 *   fast_log      2^-18    special values, denormals: the precise function's
 *   fast_tanh     2^-18    |result| <= 1
 *   fast_sigmoid  2^-17.5  results below 2^-124 may stay at 2^-126
 *   fast_erf      2^-16.5  |result| <= 1
 *   fast_sin/cos  2^-18 of max(|result|, 2^-13)  beyond |x| = 8192: the precise function's
 *   fast_recip    2^-22    for 2^-126 <= |x| <= 2^125; signed zero and inf exact
 *   fast_rsqrt    2^-21    for normal x; signed zero and inf exact */
#define TFS_V TFS_CAT(tfs_, TFS_N)
#define TFS_M TFS_CAT(tfs_m_, TFS_N)
#define F(op) TFS_CAT4(tfs_, op, _, TFS_N)
#define K(c) F(set1)(c)

/* exp(r) = 1 + r p(r), degree 3: 2^-18.4.  hi is the upper clamp. */
TFS_FN TFS_V F(fast_exp_to)(TFS_V x, float hi) {
  TFS_V c = F(mink)(x, K(hi));
  TFS_V t = F(fma)(c, K(0x1.715476p+0f), K(TFS_MAGIC32));
  TFS_V r = F(fma)(t - K(TFS_MAGIC32), K(-0x1.62e430p-1f), c);
  TFS_V q = F(madd)(K(0x1.541304p-5f), r, K(0x1.57d12cp-3f));
  q = F(madd)(q, r, K(0x1.0003fcp-1f));
  q = F(madd)(q, r, K(0x1.fffb9ep-1f));
  q = F(madd)(q, r, K(1.0f));
  return F(zero_if)(F(lt)(x, K(-0x1.5a92d6p+6f)), F(scale_fast)(q, t));
}

TFS_FN TFS_V F(fast_exp)(TFS_V x) { return F(fast_exp_to)(x, 89.0f); }

/* (log(1 + f) - f) / f^2 by degree 5: 2^-19.5. */
TFS_FN TFS_V F(fast_log)(TFS_V x) {
  TFS_U w = F(bits)(x) + 0x004afb0du;
  TFS_V k = F(frombits)((w >> 23) | 0x4b000000u) - K(8388608.0f + 127.0f);
  TFS_V f = F(frombits)((w & 0x007fffffu) + 0x3f3504f3u) - K(1.0f);
  TFS_V q = F(madd)(K(0x1.e984f6p-4f), f, K(-0x1.7cae1ep-3f));
  q = F(madd)(q, f, K(0x1.a2cae6p-3f));
  q = F(madd)(q, f, K(-0x1.fe57d2p-3f));
  q = F(madd)(q, f, K(0x1.553062p-2f));
  q = F(madd)(q, f, K(-0x1.00011cp-1f));
  q = F(madd)(f * f, q, f);
  TFS_V y = F(fma)(k, K(0x1.62e430p-1f), q);
  TFS_M usual = F(le)(K(0x1p-126f), x) & F(le)(x, K(0x1.fffffep+127f));
  if (TFS_UNLIKELY(!F(all)(usual))) y = F(sel)(usual, y, F(log)(x));
  return y;
}

/* One Newton step from the estimate; where the step is inf * 0 the estimate is the result. */
TFS_FN TFS_V F(fast_recip)(TFS_V x) {
  TFS_V y = F(rcp_est)(x);
  TFS_V e = F(fma)(-x, y, K(1.0f));
  return F(sel)(F(eq)(e, e), F(fma)(y, e, y), y);
}

TFS_FN TFS_V F(fast_rsqrt)(TFS_V x) {
  TFS_V y = F(rsqrt_est)(x);
  TFS_V e = F(fma)(-(x * y), y, K(1.0f));
  return F(sel)(F(eq)(e, e), F(fma)(y * K(0.5f), e, y), y);
}

/* For 1 <= x <= 2^125, where no step is inf * 0. */
TFS_FN TFS_V F(fast_recip_plain)(TFS_V x) {
  TFS_V y = F(rcp_est)(x);
  return F(fma)(y, F(fma)(-x, y, K(1.0f)), y);
}

TFS_FN TFS_V F(fast_sigmoid)(TFS_V x) {
  return F(fast_recip_plain)(K(1.0f) + F(fast_exp_to)(-x, 87.0f));
}

/* x P(x^2) / Q(x^2), degrees 3 and 3, on [0, 7.5]: 2^-19.1 (iteratively reweighted fit). */
TFS_FN TFS_V F(fast_tanh)(TFS_V x) {
  TFS_V c = F(maxk)(F(mink)(x, K(7.5f)), K(-7.5f)), u = c * c;
  TFS_V p = F(madd)(K(0x1.f49ea0p-19f), u, K(0x1.25216ep-9f));
  p = F(madd)(p, u, K(0x1.f61eb8p-4f));
  p = F(madd)(p, u, K(0x1.ffffc6p-1f));
  TFS_V q = F(madd)(K(0x1.211010p-13f), u, K(0x1.563916p-6f));
  q = F(madd)(q, u, K(0x1.d2d9ccp-2f));
  q = F(madd)(q, u, K(1.0f));
  TFS_V y = (c * p) * F(fast_recip_plain)(q);
  return F(maxk)(F(mink)(y, K(1.0f)), K(-1.0f));
}

/* x P(x^2) / Q(x^2), degrees 3 and 3, on [0, 3.6]: 2^-17.0 (iteratively reweighted fit). */
TFS_FN TFS_V F(fast_erf)(TFS_V x) {
  TFS_V c = F(maxk)(F(mink)(x, K(3.6f)), K(-3.6f)), u = c * c;
  TFS_V p = F(madd)(K(0x1.6b7fbcp-11f), u, K(0x1.5a127cp-5f));
  p = F(madd)(p, u, K(0x1.45d18ep-3f));
  p = F(madd)(p, u, K(0x1.20dce4p+0f));
  TFS_V q = F(madd)(K(0x1.21c212p-7f), u, K(0x1.87cff2p-4f));
  q = F(madd)(q, u, K(0x1.e59e96p-2f));
  q = F(madd)(q, u, K(1.0f));
  TFS_V y = (c * p) * F(fast_recip_plain)(q);
  return F(maxk)(F(mink)(y, K(1.0f)), K(-1.0f));
}

/* pi/2 in two parts; sin: r + r^3 p, degree 1: 2^-18.9; cos: 1 - r^2/2 + r^4 p, degree 1: 2^-23.3;
 * s: sign bit to flip in. */
TFS_FN TFS_V F(fast_trig)(TFS_V a, TFS_U turn, TFS_U s) {
  TFS_V t = F(fma)(a, K(0x1.45f306p-1f), K(TFS_MAGIC32)), k = t - K(TFS_MAGIC32);
  TFS_V r = F(fma)(k, K(-0x1.921fb6p+0f), a);
  r = F(fma)(k, K(0x1.777a5cp-25f), r);
  TFS_U q = F(bits)(t) + turn;
  TFS_V u = r * r;
  TFS_V sn = F(madd)(r * u, F(madd)(K(0x1.0b4922p-7f), u, K(-0x1.5542d6p-3f)), r);
  TFS_V cs = F(madd)(K(-0x1.658de4p-10f), u, K(0x1.5548b0p-5f));
  cs = F(madd)(F(madd)(cs, u, K(-0.5f)), u, K(1.0f));
  TFS_V y = F(sel)(F(odd)(q), cs, sn);
  return F(frombits)(F(bits)(y) ^ ((q & 2u) << 30) ^ s);
}

TFS_FN TFS_V F(fast_sin)(TFS_V x) {
  TFS_V a = F(abs)(x);
  TFS_U s = F(bits)(x) & TFS_SIGN32;
  TFS_V y = F(fast_trig)(a, s & 0u, s);
  TFS_M usual = F(le)(a, K(8192.0f));
  if (TFS_UNLIKELY(!F(all)(usual))) y = F(sel)(usual, y, F(sin)(x));
  return y;
}

TFS_FN TFS_V F(fast_cos)(TFS_V x) {
  TFS_V a = F(abs)(x);
  TFS_U zero = F(bits)(x) & 0u;
  TFS_V y = F(fast_trig)(a, zero + 1u, zero);
  TFS_M usual = F(le)(a, K(8192.0f));
  if (TFS_UNLIKELY(!F(all)(usual))) y = F(sel)(usual, y, F(cos)(x));
  return y;
}

#undef TFS_V
#undef TFS_M
#undef F
#undef K
