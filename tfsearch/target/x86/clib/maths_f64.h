/* f64 maths for one width (TFS_N, TFS_U, TFS_L); included once per width by maths.h.
 *
 * Polynomials: weighted minimax fits (Remez exchange in 60-digit arithmetic), then rounded to f64;
 * each states the relative error of the function it yields, before rounding.  Bounds over all of
 * f64: <= 4 ulp for every function (recip exact rounding).  There is no faster f64 class: the
 * tfs_fast_ names are the precise functions, so generated text is uniform. */
#define TFS_V TFS_CAT(tfs_, TFS_N)
#define TFS_M TFS_CAT(tfs_m_, TFS_N)
#define F(op) TFS_CAT4(tfs_, op, _, TFS_N)
#define K(c) F(set1)(c)
#define P(c) p = F(fma)(p, u, K(c))

/* As f32; (exp(r) - 1 - r) / r^2 by degree 9: 2^-57.9. */
TFS_FN TFS_V F(exp)(TFS_V x) {
  TFS_V c = F(maxk)(F(mink)(x, K(710.0)), K(-746.0));
  TFS_V k = F(fma)(c, K(0x1.71547652b82fep+0), K(TFS_MAGIC64)) - K(TFS_MAGIC64);
  TFS_V u = F(fma)(k, K(-0x1.62e42fefa39efp-1), c);
  u = F(fma)(k, K(-0x1.abc9e3b39803fp-56), u);
  TFS_V p = K(0x1.ad7f68a83a658p-26);
  P(0x1.28ad72fdb636bp-22);
  P(0x1.71df25564c435p-19);
  P(0x1.a0199a0c3d217p-16);
  P(0x1.a01a012a55f99p-13);
  P(0x1.6c16c1842a19cp-10);
  P(0x1.1111111127be9p-7);
  P(0x1.555555555087dp-5);
  P(0x1.55555555554fap-3);
  P(0x1.000000000000ap-1);
  return F(scale)(F(fma)(u * u, p, u) + K(1.0), k);
}

/* log(1 + f) = 2 atanh(s), s = f / (2 + f), written f - s (f - R) with R = 2 atanh(s)/s - 2:
 * R / s^2 by degree 6 in s^2: 2^-59.5. */
TFS_FN TFS_V F(log)(TFS_V x) {
  TFS_M tiny = F(lt)(x, K(0x1p-1022));
  TFS_V xs = F(sel)(tiny, x * K(0x1p54), x);
  TFS_U w = F(bits)(xs) + UINT64_C(0x00095f619980c433);
  TFS_V k = F(frombits)((w >> 52) | UINT64_C(0x4330000000000000)) - K(0x1p52 + 1023.0);
  k = F(sel)(tiny, k - K(54.0), k);
  TFS_V f = F(frombits)((w & UINT64_C(0x000fffffffffffff)) + UINT64_C(0x3fe6a09e667f3bcd)) - K(1.0);
  TFS_V s = f / (f + K(2.0)), u = s * s;
  TFS_V p = K(0x1.2f0377741f0bap-3);
  P(0x1.39a1f3d131f56p-3);
  P(0x1.74663c59c8ac6p-3);
  P(0x1.c71c52179619cp-3);
  P(0x1.24924941dd7c2p-2);
  P(0x1.999999997ff3ep-2);
  P(0x1.5555555555592p-1);
  TFS_V t = F(fma)(-s, F(fma)(-p, u, f), k * K(0x1.abc9e3b39803fp-56));
  TFS_V y = F(fma)(k, K(0x1.62e42fefa39efp-1), f + t);
  TFS_V bad = F(sel)(F(eq)(x, K(0.0)), K(-__builtin_inf()), K(__builtin_nan("")));
  y = F(sel)(F(lt)(K(0.0), x), y, bad);
  return F(sel)(F(eq)(x, K(__builtin_inf())), x, y);
}

/* |x| < 0.6: x + x^3 p(x^2), degree 10: 2^-57.8.  Beyond: 1 - 2 / (exp(2|x|) + 1). */
TFS_FN TFS_V F(tanh)(TFS_V x) {
  TFS_V a = F(abs)(x), u = a * a;
  TFS_V p = K(-0x1.2035cde440df8p-16);
  P(0x1.4caa99fe3aacbp-14);
  P(-0x1.e32d502c65c43p-13);
  P(0x1.33db176435831p-11);
  P(-0x1.7d79d98d52409p-10);
  P(0x1.d6d0c6255758bp-9);
  P(-0x1.226e2292d2c86p-7);
  P(0x1.664f47f0168f4p-6);
  P(-0x1.ba1ba1b780a55p-5);
  P(0x1.111111110e1afp-3);
  P(-0x1.5555555555530p-2);
  TFS_V near = F(fma)(a * u, p, a);
  TFS_V e = F(exp)(F(mink)(a + a, K(40.0)));
  TFS_V far = K(1.0) - K(2.0) / (e + K(1.0));
  return F(copysign)(F(sel)(F(lt)(a, K(0.6)), near, far), x);
}

TFS_FN TFS_V F(sigmoid)(TFS_V x) {
  TFS_V e = F(exp)(-F(abs)(x));
  TFS_V n = F(sel)(F(lt)(x, K(0.0)), e, K(1.0));
  return n / (K(1.0) + e);
}

/* |x| < 0.875: x + x p(x^2), degree 11: 2^-61.4.  Up to 6: 1 - exp(p(|x|)), p = log(erfc),
 * degree 20: 2^-63.9.  Beyond 6 the result is 1. */
TFS_FN TFS_V F(erf)(TFS_V x) {
  TFS_V a = F(abs)(x), u = x * x;
  TFS_V p = K(-0x1.dbd1e48dba30cp-31);
  P(0x1.e517ca514212bp-27);
  P(-0x1.5dca541d9a60ep-23);
  P(0x1.b9c05623fca77p-20);
  P(-0x1.f4d00d0d2cefbp-17);
  P(0x1.f9a30f2fda132p-14);
  P(-0x1.c02db35e71718p-11);
  P(0x1.565bcd0baedacp-8);
  P(-0x1.b82ce3127abcep-6);
  P(0x1.ce2f21a042992p-4);
  P(-0x1.812746b0379e4p-2);
  P(0x1.06eba8214db69p-3);
  TFS_V near = F(fma)(x, p, x);
  u = F(mink)(a, K(6.0));
  p = K(0x1.475264c40a14ap-46);
  P(-0x1.2634e0e8757c5p-40);
  P(0x1.f202b43618e2cp-36);
  P(-0x1.0825663dcd40cp-31);
  P(0x1.8a272ff32995bp-28);
  P(-0x1.b7b5b83fa9445p-25);
  P(0x1.7c0dc9d914bd2p-22);
  P(-0x1.03b141d825269p-19);
  P(0x1.1aa05ec49f69ap-17);
  P(-0x1.e5c096440dbc2p-16);
  P(0x1.3d1b9dc0536bep-14);
  P(-0x1.1359b7ea7e0bfp-13);
  P(0x1.c194acbd6202cp-15);
  P(0x1.0cf41cab08aa9p-11);
  P(-0x1.acc46dc991b17p-10);
  P(0x1.672826e12b5cep-13);
  P(0x1.39b40e2a1606dp-6);
  P(-0x1.a4fbf77216b7dp-4);
  P(-0x1.45f2cc81fb6a7p-1);
  P(-0x1.20dd79bc63640p+0);
  P(0x1.711dfa65637c1p-26);
  TFS_V far = F(copysign)(K(1.0) - F(exp)(p), x);
  return F(sel)(F(lt)(a, K(0.875)), near, far);
}

TFS_RARE void F(reduce_far)(const double* a, double limit, double* r, uint64_t* q) {
  for (int i = 0; i < TFS_L; ++i) {
    if (a[i] <= limit) continue;
    double rd = a[i] - a[i];
    if (rd == 0) q[i] = tfs_reduce_big(a[i], &rd);
    r[i] = rd;
  }
}

/* As f32, with parts of 53 bits: valid to 2^30 in line, everywhere through tfs_reduce_big. */
TFS_FN TFS_V F(reduce)(TFS_V a, TFS_U* q) {
  TFS_V t = F(fma)(a, K(0x1.45f306dc9c883p-1), K(TFS_MAGIC64)), k = t - K(TFS_MAGIC64);
  TFS_V r = F(fma)(k, K(-0x1.921fb54442d18p+0), a);
  r = F(fma)(k, K(-0x1.1a62633145c07p-54), r);
  r = F(fma)(k, K(0x1.f1976b7ed8fbcp-110), r);
  *q = F(bits)(t);
  if (TFS_UNLIKELY(!F(all)(F(le)(a, K(0x1p30))))) {
    double av[TFS_L], rv[TFS_L];
    uint64_t qv[TFS_L];
    memcpy(av, &a, sizeof av);
    memcpy(rv, &r, sizeof rv);
    memcpy(qv, q, sizeof qv);
    F(reduce_far)(av, 0x1p30, rv, qv);
    memcpy(&r, rv, sizeof rv);
    memcpy(q, qv, sizeof qv);
  }
  return r;
}

/* sin: degree 5: 2^-57.8; cos: degree 5: 2^-63.8. */
TFS_FN TFS_V F(trig)(TFS_V r, TFS_U q, TFS_U s) {
  TFS_V u = r * r;
  TFS_V p = K(0x1.5d85232a5441fp-33);
  P(-0x1.ae5e36aa514b0p-26);
  P(0x1.71de353b49a60p-19);
  P(-0x1.a01a019bcc3e7p-13);
  P(0x1.111111110f651p-7);
  P(-0x1.5555555555547p-3);
  TFS_V sn = F(fma)(r * u, p, r);
  p = K(-0x1.8f98a7420c361p-37);
  P(0x1.1ee9c10be77d0p-29);
  P(-0x1.27e4f7ca166dcp-22);
  P(0x1.a01a019c580d2p-16);
  P(-0x1.6c16c16c14dd7p-10);
  P(0x1.555555555554ap-5);
  TFS_V cs = F(fma)(u * u, p, F(fma)(u, K(-0.5), K(1.0)));
  TFS_V y = F(sel)(F(odd)(q), cs, sn);
  return F(frombits)(F(bits)(y) ^ ((q & 2u) << 62) ^ s);
}

TFS_FN TFS_V F(sin)(TFS_V x) {
  TFS_U q;
  TFS_V r = F(reduce)(F(abs)(x), &q);
  return F(trig)(r, q, F(bits)(x) & TFS_SIGN64);
}

TFS_FN TFS_V F(cos)(TFS_V x) {
  TFS_U q;
  TFS_V r = F(reduce)(F(abs)(x), &q);
  return F(trig)(r, q + 1u, q & 0u);
}

TFS_FN TFS_V F(recip)(TFS_V x) { return K(1.0) / x; }

TFS_FN TFS_V F(rsqrt)(TFS_V x) { return K(1.0) / F(sqrt)(x); }

TFS_FN TFS_V F(fast_exp)(TFS_V x) { return F(exp)(x); }
TFS_FN TFS_V F(fast_log)(TFS_V x) { return F(log)(x); }
TFS_FN TFS_V F(fast_tanh)(TFS_V x) { return F(tanh)(x); }
TFS_FN TFS_V F(fast_sigmoid)(TFS_V x) { return F(sigmoid)(x); }
TFS_FN TFS_V F(fast_erf)(TFS_V x) { return F(erf)(x); }
TFS_FN TFS_V F(fast_sin)(TFS_V x) { return F(sin)(x); }
TFS_FN TFS_V F(fast_cos)(TFS_V x) { return F(cos)(x); }
TFS_FN TFS_V F(fast_recip)(TFS_V x) { return F(recip)(x); }
TFS_FN TFS_V F(fast_rsqrt)(TFS_V x) { return F(rsqrt)(x); }

#undef TFS_V
#undef TFS_M
#undef F
#undef K
#undef P
