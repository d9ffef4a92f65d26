/* Precise f32 maths for one width (TFS_N, TFS_U, TFS_L); included once per width by maths.h.
 *
 * Polynomials: weighted minimax fits (Remez exchange in 45-digit arithmetic), then rounded to f32;
 * each states the relative error of the function it yields, before rounding.
 * Bounds over all of f32: exp, log, sin, cos, rsqrt <= 2 ulp, recip exact rounding,
 * tanh, erf, sigmoid <= 3 ulp. */
#define TFS_V TFS_CAT(tfs_, TFS_N)
#define TFS_M TFS_CAT(tfs_m_, TFS_N)
#define F(op) TFS_CAT4(tfs_, op, _, TFS_N)
#define K(c) F(set1)(c)

/* exp(x) = 2^(k/16) exp(r), k = round(16 x / ln 2), |r| <= ln(2)/32; (exp(r) - 1 - r) / r^2 by degree
 * 1: 2^-27.7.  2^(k/16) is 2^floor(k/16), which the scaling gives, times one of 16 numbers, which the
 * lowest four bits of x / ln 2 + 1.5 * 2^19 select.  Beyond the clamps the scaling gives inf and 0. */
TFS_FN TFS_V F(exp)(TFS_V x) {
  TFS_V c = F(maxk)(F(mink)(x, K(89.0f)), K(-104.0f));
  TFS_V t = F(fma)(c, K(0x1.715476p+0f), K(TFS_MAGIC32_16)), k = t - K(TFS_MAGIC32_16);
  TFS_V r = F(fma)(k, K(-0x1.62e430p-1f), c);
  r = F(fma)(k, K(0x1.05c610p-29f), r);
  TFS_V s = F(select16)(tfs_exp2_16, F(bits)(t));
  TFS_V q = F(fma)(K(0x1.555556p-3f), r, K(0x1.000148p-1f));
  q = F(fma)(r * r, q, r);
  return F(scale_16)(F(fma)(s, q, s), t);
}

/* log(x) = k ln 2 + log(1 + f), sqrt(1/2) <= 1 + f < sqrt(2); (log(1 + f) - f + f^2/2) / f^3 by
 * degree 7: 2^-27.3.  Denormals are scaled by 2^25 first. */
TFS_FN TFS_V F(log)(TFS_V x) {
  TFS_M tiny = F(lt)(x, K(0x1p-126f));
  TFS_V xs = F(sel)(tiny, x * K(0x1p25f), x);
  TFS_U w = F(bits)(xs) + 0x004afb0du;
  TFS_V k = F(frombits)((w >> 23) | 0x4b000000u) - K(8388608.0f + 127.0f);
  k = F(sel)(tiny, k - K(25.0f), k);
  TFS_V f = F(frombits)((w & 0x007fffffu) + 0x3f3504f3u) - K(1.0f);
  TFS_V q = F(fma)(K(-0x1.38b840p-4f), f, K(0x1.055cbep-3f));
  q = F(fma)(q, f, K(-0x1.0d8558p-3f));
  q = F(fma)(q, f, K(0x1.22d9f2p-3f));
  q = F(fma)(q, f, K(-0x1.547240p-3f));
  q = F(fma)(q, f, K(0x1.99a00ap-3f));
  q = F(fma)(q, f, K(-0x1.000228p-2f));
  q = F(fma)(q, f, K(0x1.555554p-2f));
  TFS_V t = F(fma)(f, q, K(-0.5f)) * (f * f);
  t = F(fma)(k, K(-0x1.05c610p-29f), t);
  TFS_V y = F(fma)(k, K(0x1.62e430p-1f), f + t);
  TFS_V bad = F(sel)(F(eq)(x, K(0.0f)), K(-__builtin_inff()), K(__builtin_nanf("")));
  y = F(sel)(F(lt)(K(0.0f), x), y, bad);
  return F(sel)(F(eq)(x, K(__builtin_inff())), x, y);
}

/* |x| < 0.65: x + x^3 p(x^2), degree 4: 2^-27.1.  Beyond: 1 - 2 / (exp(2|x|) + 1). */
TFS_FN TFS_V F(tanh)(TFS_V x) {
  TFS_V a = F(abs)(x), u = a * a;
  TFS_V p = F(fma)(K(-0x1.6972cap-8f), u, K(0x1.4f5fb0p-6f));
  p = F(fma)(p, u, K(-0x1.b7d022p-5f));
  p = F(fma)(p, u, K(0x1.1103f4p-3f));
  p = F(fma)(p, u, K(-0x1.555524p-2f));
  TFS_V near = F(fma)(a * u, p, a);
  TFS_V e = F(exp)(F(mink)(a + a, K(20.0f)));
  TFS_V far = K(1.0f) - K(2.0f) / (e + K(1.0f));
  return F(copysign)(F(sel)(F(lt)(a, K(0.65f)), near, far), x);
}

/* e / (1 + e) or 1 / (1 + e) with e = exp(-|x|): no overflow, denormal results kept. */
TFS_FN TFS_V F(sigmoid)(TFS_V x) {
  TFS_V e = F(exp)(-F(abs)(x));
  TFS_V n = F(sel)(F(lt)(x, K(0.0f)), e, K(1.0f));
  return n / (K(1.0f) + e);
}

/* |x| < 0.875: x + x p(x^2), degree 5: 2^-26.8.  Up to 4: 1 - exp(p(|x|)), p = log(erfc), degree 6:
 * 2^-29.0.  Beyond 4 the result is 1. */
TFS_FN TFS_V F(erf)(TFS_V x) {
  TFS_V a = F(abs)(x), u = x * x;
  TFS_V p = F(fma)(K(-0x1.453a9ep-11f), u, K(0x1.49ca0ap-8f));
  p = F(fma)(p, u, K(-0x1.b6f390p-6f));
  p = F(fma)(p, u, K(0x1.ce2120p-4f));
  p = F(fma)(p, u, K(-0x1.81270cp-2f));
  p = F(fma)(p, u, K(0x1.06eba6p-3f));
  TFS_V near = F(fma)(x, p, x);
  TFS_V c = F(mink)(a, K(4.0f));
  TFS_V q = F(fma)(K(0x1.a58504p-13f), c, K(-0x1.955018p-9f));
  q = F(fma)(q, c, K(0x1.6f5534p-6f));
  q = F(fma)(q, c, K(-0x1.ab5350p-4f));
  q = F(fma)(q, c, K(-0x1.46026cp-1f));
  q = F(fma)(q, c, K(-0x1.20c06cp+0f));
  q = F(fma)(q, c, K(-0x1.1820dep-13f));
  TFS_V far = F(copysign)(K(1.0f) - F(exp)(q), x);
  return F(sel)(F(lt)(a, K(0.875f)), near, far);
}

/* Lanes of a that exceed the in-line reduction (or are inf, NaN) get r and q from
 * tfs_reduce_big. */
TFS_RARE void F(reduce_far)(const float* a, float limit, float* r, uint32_t* q) {
  for (int i = 0; i < TFS_L; ++i) {
    if (a[i] <= limit) continue;
    double rd = a[i] - a[i];
    if (rd == 0) q[i] = tfs_reduce_big(a[i], &rd);
    r[i] = (float)rd;
  }
}

/* r = a - k pi/2 for 0 <= a, |r| <= pi/4 (and a little), q = k mod 4.  pi/2 = c1 + c2 + c3 of 24
 * bits each: a - k c1 is exact (a multiple of 2^-23 below 2 in magnitude), valid to 2^16. */
TFS_FN TFS_V F(reduce)(TFS_V a, TFS_U* q) {
  TFS_V t = F(fma)(a, K(0x1.45f306p-1f), K(TFS_MAGIC32)), k = t - K(TFS_MAGIC32);
  TFS_V r = F(fma)(k, K(-0x1.921fb6p+0f), a);
  r = F(fma)(k, K(0x1.777a5cp-25f), r);
  r = F(fma)(k, K(0x1.ee59dap-50f), r);
  *q = F(bits)(t);
  if (TFS_UNLIKELY(!F(all)(F(le)(a, K(65536.0f))))) {
    float av[TFS_L], rv[TFS_L];
    uint32_t qv[TFS_L];
    memcpy(av, &a, sizeof av);
    memcpy(rv, &r, sizeof rv);
    memcpy(qv, q, sizeof qv);
    F(reduce_far)(av, 65536.0f, rv, qv);
    memcpy(&r, rv, sizeof rv);
    memcpy(q, qv, sizeof qv);
  }
  return r;
}

/* sin(r + q pi/2) with the sign bit s flipped in.  sin: r + r^3 p(r^2), degree 2: 2^-27.8;
 * cos: 1 - r^2/2 + r^4 p(r^2), degree 2: 2^-32.7. */
TFS_FN TFS_V F(trig)(TFS_V r, TFS_U q, TFS_U s) {
  TFS_V u = r * r;
  TFS_V p = F(fma)(K(-0x1.990248p-13f), u, K(0x1.11067ap-7f));
  p = F(fma)(p, u, K(-0x1.555544p-3f));
  TFS_V sn = F(fma)(r * u, p, r);
  TFS_V c = F(fma)(K(0x1.99b000p-16f), u, K(-0x1.6c0b64p-10f));
  c = F(fma)(c, u, K(0x1.555548p-5f));
  TFS_V cs = F(fma)(u * u, c, F(fma)(u, K(-0.5f), K(1.0f)));
  TFS_V y = F(sel)(F(odd)(q), cs, sn);
  return F(frombits)(F(bits)(y) ^ ((q & 2u) << 30) ^ s);
}

TFS_FN TFS_V F(sin)(TFS_V x) {
  TFS_U q;
  TFS_V r = F(reduce)(F(abs)(x), &q);
  return F(trig)(r, q, F(bits)(x) & TFS_SIGN32);
}

TFS_FN TFS_V F(cos)(TFS_V x) {
  TFS_U q;
  TFS_V r = F(reduce)(F(abs)(x), &q);
  return F(trig)(r, q + 1u, q & 0u);
}

TFS_FN TFS_V F(recip)(TFS_V x) { return K(1.0f) / x; }

TFS_FN TFS_V F(rsqrt)(TFS_V x) { return K(1.0f) / F(sqrt)(x); }

#undef TFS_V
#undef TFS_M
#undef F
#undef K
