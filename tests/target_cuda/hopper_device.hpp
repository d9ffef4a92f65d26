// What CUDA C++ names of a device, for kernels in the model of hopper.hpp, and how they are run.

#include "hopper.hpp"

// What kernels see of the device. ----------------------------------------------------------------

inline Dim hw_thread() { return {(unsigned)hw::m->now->id, 0, 0}; }
inline Dim hw_block() { return {(unsigned)hw::cta().index, 0, 0}; }
#define threadIdx hw_thread()
#define blockIdx hw_block()
inline unsigned __cvta_generic_to_shared(const void *p) { return hw::address(p); }
inline char *hw_shared() { return (char *)hw::cta().memory.data() + hw::m->start; }
inline void __syncthreads() { hw::named_sync(0, (int)hw::cta().threads.size()); }
template <class T> T hw_shuffled(T v, const std::function<int(int)> &from) {
  hw::u64 word = 0;
  memcpy(&word, &v, sizeof v);
  hw::Warp &w = hw::warp();
  hw::together("shfl", word, [](hw::Warp &) {});
  const hw::u64 got = w.out[from(hw::m->now->id % 32)];
  T out;
  memcpy(&out, &got, sizeof out);
  // No thread goes on to the next exchange before all have read this one.
  hw::together("shfl", 0, [](hw::Warp &) {});
  return out;
}
template <class T> T __shfl_xor_sync(unsigned, T v, int mask) {
  return hw_shuffled(v, [mask](int lane) { return lane ^ mask; });
}
template <class T> T __shfl_sync(unsigned, T v, int lane) {
  return hw_shuffled(v, [lane](int) { return lane; });
}
inline float __int_as_float(int v) { float f; memcpy(&f, &v, 4); return f; }
inline float __uint_as_float(unsigned v) { float f; memcpy(&f, &v, 4); return f; }
inline unsigned __float_as_uint(float v) { unsigned u; memcpy(&u, &v, 4); return u; }
inline int __float2int_rn(float v) { return (int)std::lrint(v); }
inline int __double2int_rn(double v) { return (int)std::lrint(v); }
using std::isnan;
using std::max;
using std::min;
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline double __dsqrt_rn(double a) { return sqrt(a); }
inline float __frcp_rn(float a) { return 1 / a; }
inline double __drcp_rn(double a) { return 1 / a; }
inline float rsqrtf(float a) { return 1 / sqrtf(a); }
inline double rsqrt(double a) { return 1 / sqrt(a); }
inline float __expf(float a) { return expf(a); }
inline float __logf(float a) { return logf(a); }
inline float __sinf(float a) { return sinf(a); }
inline float __cosf(float a) { return cosf(a); }
template <class T> void __stcs(T *p, T v) { *p = v; }
inline void __threadfence() {}

namespace hw {

inline unsigned short to_bf16(float v) {
  unsigned u = __float_as_uint(v);
  if (v != v) return 0x7FFF;
  return (unsigned short)((u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
inline unsigned short to_f16(float v) {
  // Through the nearest of all halves; small and slow, and plainly right.
  if (v != v) return 0x7FFF;
  const unsigned short sign = std::signbit(v) ? 0x8000 : 0;
  const float a = std::fabs(v);
  if (a >= 65520.0f) return sign | 0x7C00;
  int low = 0, high = 0x7BFF;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (half_bits((unsigned short)middle, 1) <= a) low = middle; else high = middle - 1;
  }
  const double under = a - half_bits((unsigned short)low, 1);
  const double over = (low == 0x7BFF ? 65536.0 : half_bits((unsigned short)(low + 1), 1)) - a;
  if (over < under || (over == under && low % 2)) ++low;
  return sign | (unsigned short)low;
}
inline unsigned pair(unsigned short high, unsigned short low) {
  return (unsigned)high << 16 | low;
}
inline void store_words(void *p, std::vector<unsigned> words) {
  if ((u64)p % (4 * words.size())) fail("a store of %zu words at %p", words.size(), p);
  memcpy(p, words.data(), 4 * words.size());
}
inline float no_nan(float a, float b, bool greater) {
  if (a != a || b != b) return NAN;
  return (a > b) == greater ? a : b;
}

// Runs `body` for every thread of every block, cluster by cluster; an empty text, or what went wrong.
inline std::string run(void (*body)(), int grid, int threads, int cluster, unsigned shared,
                       int entry_registers, unsigned seed) {
  Machine machine;
  m = &machine;
  m->random.seed(seed);
  m->body = body;
  m->shared = shared;
  if (grid % cluster) return "the grid is no multiple of the cluster";
  for (int first = 0; first < grid; first += cluster) {
    // Dynamic shared memory starts at any multiple of 16 bytes.
    m->start = 1024 + 16 * below(64);
    m->ctas.clear();
    m->loads.clear();
    m->cluster_came = m->cluster_phase = 0;
    m->cluster_waits.assign(cluster * threads, 0);
    for (int rank = 0; rank < cluster; ++rank) {
      auto c = std::make_unique<Cta>();
      c->index = first + rank;
      c->rank = rank;
      c->memory.assign(m->start + shared + 64, 0xFF);
      c->warps.resize(threads / 32);
      c->groups.resize(threads / 128);
      for (Warp &w : c->warps) w.registers = entry_registers;
      c->free_registers = 0;
      for (int id = 0; id < threads; ++id) {
        auto t = std::make_unique<Thread>();
        t->id = id;
        t->cta = c.get();
        t->stack.resize(96 << 10);
        getcontext(&t->context);
        t->context.uc_stack.ss_sp = t->stack.data();
        t->context.uc_stack.ss_size = t->stack.size();
        t->context.uc_link = nullptr;
        makecontext(&t->context, enter, 0);
        c->threads.push_back(std::move(t));
      }
      m->ctas.push_back(std::move(c));
    }
    try {
      run_cluster();
    } catch (Fault &fault) {
      return fault.text;
    }
    if (m->failed) return m->error;
    for (auto &c : m->ctas)
      for (Warpgroup &g : c->groups)
        if (!g.queue.empty()) return "a block ends before its products are complete";
    if (!m->loads.empty()) return "a block ends before its copies have landed";
  }
  return "";
}

}  // namespace hw
