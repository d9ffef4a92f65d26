// An SM of sm_90a as the PTX documentation describes it, for kernels compiled for the host: threads
// are coroutines, shared memory is bytes, and what is asynchronous happens at any time between its
// issue and the wait for it. Written from the documentation of the instructions; knows nothing of
// the generator whose kernels it runs. A violation of a rule ends the run with a message.

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>
#include <ucontext.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct Dim { unsigned x, y, z; };
inline float2 make_float2(float x, float y) { return {x, y}; }

namespace hw {

typedef unsigned long long u64;

struct Fault { std::string text; };
[[noreturn]] inline void fail(const char *format, ...) {
  char buffer[400];
  va_list list;
  va_start(list, format);
  vsnprintf(buffer, sizeof buffer, format, list);
  va_end(list);
  throw Fault{buffer};
}

struct Barrier { int count = 0, pending = 0, phase = 0; long tx = 0; bool shown = false; };
struct Named { int came = 0, size = 0; long generation = 0; };
struct Map { u64 words[16]; };
struct Store { const Map *map; unsigned from; int at[5]; int stage = 0; };
struct Product {
  int n, scale, transpose_a, transpose_b, half;
  u64 a, b;
  std::vector<float *> d[128];
};
// What a warpgroup issues and waits for; a product is made once all of its 128 threads came.
struct Warpgroup {
  std::vector<std::shared_ptr<Product>> queue;
  std::vector<int> groups;  // products of every committed group that is not complete
  int open = 0, came = 0;
  long generation = 0;
  std::shared_ptr<Product> gathering;
  bool fenced[128] = {};
};
struct Warp {
  u64 slots[32], out[32];
  int came = 0, registers = 0, asleep = 0;
  long generation = 0;
  const char *what = "";
};
struct Cta;
struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  int id = 0;
  Cta *cta = nullptr;
  bool done = false;
  std::function<bool()> *blocked = nullptr;
  const char *where = "";
  std::vector<std::pair<unsigned, std::vector<unsigned char>>> unshown;  // generic writes
  std::vector<Store> open;
  std::vector<std::vector<Store>> groups;
};
struct Load { const Map *map; unsigned to, barrier; int mask; int at[5]; Cta *from; };
struct Cta {
  int index = 0, rank = 0;
  std::vector<unsigned char> memory;
  std::map<unsigned, Barrier> barriers;
  Named named[16];
  std::vector<std::unique_ptr<Thread>> threads;
  std::vector<Warp> warps;
  std::vector<Warpgroup> groups;
  long free_registers = 0;
};
struct Machine {
  std::mt19937 random;
  ucontext_t main;
  Thread *now = nullptr;
  std::vector<std::unique_ptr<Cta>> ctas;  // of the running cluster
  std::vector<Load> loads;
  int cluster_came = 0, cluster_phase = 0;
  std::vector<int> cluster_waits;
  bool progress = false;
  bool failed = false;
  std::string error;
  unsigned start = 0, shared = 0;
  void (*body)() = nullptr;
};
inline Machine *m;

inline Cta &cta() { return *m->now->cta; }
inline Warp &warp() { return cta().warps[m->now->id / 32]; }
inline int below(int n) { return (int)(m->random() % n); }

// Threads wait for a condition; the scheduler asks it before it goes on with them.
inline void until(const char *where, std::function<bool()> test) {
  Thread *me = m->now;
  me->where = where;
  me->blocked = &test;
  swapcontext(&me->context, &m->main);
  me->blocked = nullptr;
}

// One instruction of all 32 threads of a warp.
inline u64 together(const char *what, u64 value, const std::function<void(Warp &)> &last) {
  Warp &w = warp();
  if (w.came && strcmp(w.what, what)) fail("threads of a warp meet at %s and %s", w.what, what);
  w.what = what;
  w.slots[m->now->id % 32] = value;
  const long mine = w.generation;
  if (++w.came == 32) {
    w.came = 0;
    memcpy(w.out, w.slots, sizeof w.out);
    last(w);
    ++w.generation;
    m->progress = true;
  } else {
    until(what, [&w, mine] { return w.generation != mine; });
  }
  return w.out[m->now->id % 32];
}

// Shared memory: an address is of this block, or names the rank of another one. ------------------

inline unsigned address(const void *p) {
  Cta &c = cta();
  const unsigned char *at = (const unsigned char *)p;
  if (at < c.memory.data() || at > c.memory.data() + c.memory.size()) fail("not in shared memory");
  return (unsigned)(at - c.memory.data());
}
inline unsigned mapa(unsigned address, int rank) {
  if (rank < 0 || rank >= (int)m->ctas.size()) fail("rank %d is not in the cluster", rank);
  return (address & 0xFFFFFF) | (unsigned)(rank + 1) << 24;
}
inline Cta &owner(unsigned address) {
  return address >> 24 ? *m->ctas[(address >> 24) - 1] : cta();
}
inline unsigned char *bytes(Cta &c, unsigned address, unsigned size) {
  if (address < m->start || address + size > m->start + m->shared)
    fail("shared memory at %u, %u B, of %u B from %u", address, size, m->shared, m->start);
  return c.memory.data() + address;
}
inline unsigned swizzled(unsigned address, int span) {
  const unsigned mask = span == 128 ? 7 : span == 64 ? 3 : span == 32 ? 1 : 0;
  return address ^ ((address >> 7 & mask) << 4);
}

// Barrier objects. ---------------------------------------------------------------------------

inline Barrier &barrier(Cta &c, unsigned address) {
  auto found = c.barriers.find(address & 0xFFFFFF);
  if (found == c.barriers.end()) fail("no barrier object at %u", address & 0xFFFFFF);
  return found->second;
}
inline void advance(Barrier &b) {
  if (b.pending == 0 && b.tx == 0) {
    b.pending = b.count;
    b.phase ^= 1;
  }
  m->progress = true;
}
inline void barrier_init(unsigned address, int count) {
  if (address % 8) fail("a barrier object at %u", address);
  bytes(cta(), address, 8);
  cta().barriers[address] = Barrier{count, count, 0, 0, false};
}
inline void fence_init() {
  for (auto &entry : cta().barriers) entry.second.shown = true;
}
inline void barrier_arrive(unsigned address) {
  Barrier &b = barrier(owner(address), address);
  if (!b.shown) fail("a barrier object is used that no fence showed");
  if (b.pending == 0) fail("more arrivals at a barrier than the %d of a phase", b.count);
  --b.pending;
  advance(b);
}
inline void barrier_expect(unsigned address, int count) {
  Barrier &b = barrier(cta(), address);
  b.tx += count;
  if (b.tx >= 1 << 20) fail("%ld B are expected of one phase", b.tx);
  barrier_arrive(address);
}
inline bool barrier_try(unsigned address, int parity) {
  Barrier &b = barrier(cta(), address);
  until("mbarrier.try_wait", [&b, parity] { return b.phase != (parity & 1); });
  return true;
}

// Tensor maps: address, bytes of an element, rank, dims, strides, box, swizzle span. -------------

inline u64 element(const Map &map, const int *at) {
  u64 place = map.words[0] + at[0] * map.words[1];
  for (int d = 1; d < (int)map.words[2]; ++d) place += (long)at[d] * (long)map.words[8 + d];
  return place;
}
inline int box(const Map &map, int d) { return map.words[13] >> (9 * d) & 511; }
inline int dim(const Map &map, int d) { return (int)map.words[3 + d]; }

// Calls `move(shared address, global address or 0 outside)` for every element of a box.
template <class F> void walk(const Map &map, unsigned smem, const int *at, F move) {
  const int rank = (int)map.words[2], size = (int)map.words[1], span = (int)map.words[14];
  int total = 1;
  for (int d = 0; d < rank; ++d) total *= box(map, d);
  if (smem % 128) fail("a box at %u in shared memory", smem);
  for (int i = 0; i < total; ++i) {
    int rest = i, place[5];
    bool inside = true;
    for (int d = 0; d < rank; ++d) {
      place[d] = at[d] + rest % box(map, d);
      rest /= box(map, d);
      inside = inside && place[d] >= 0 && place[d] < dim(map, d);
    }
    const unsigned to = swizzled(smem + i * size, span);
    move(to, inside ? element(map, place) : 0, size);
  }
}
inline long box_bytes(const Map &map) {
  long total = (long)map.words[1];
  for (int d = 0; d < (int)map.words[2]; ++d) total *= box(map, d);
  return total;
}
inline void check_map(const Map *map, int rank) {
  if ((u64)map % 64) fail("a tensor map at %p", (const void *)map);
  if ((int)map->words[2] != rank) fail("%d coordinates for rank %d", rank, (int)map->words[2]);
}
inline void issue_load(const void *map, unsigned to, unsigned barrier_at, int mask,
                       std::vector<int> at) {
  Load load{(const Map *)map, to, barrier_at, mask, {}, &cta()};
  check_map(load.map, (int)at.size());
  std::copy(at.begin(), at.end(), load.at);
  barrier(cta(), barrier_at);
  m->loads.push_back(load);
}
inline void box_load(unsigned to, const void *map, std::vector<int> at, unsigned barrier_at) {
  issue_load(map, to, barrier_at, 0, at);
}
inline void box_cast(unsigned to, const void *map, std::vector<int> at, unsigned barrier_at,
                     int mask) {
  if (mask <= 0 || mask >> m->ctas.size()) fail("mask %d", mask);
  issue_load(map, to, barrier_at, mask, at);
}
inline void land(const Load &load) {
  for (size_t rank = 0; rank < m->ctas.size(); ++rank) {
    Cta &c = *m->ctas[rank];
    if (load.mask ? !(load.mask >> rank & 1) : &c != load.from) continue;
    walk(*load.map, load.to, load.at, [&](unsigned to, u64 from, int size) {
      unsigned char *place = bytes(c, to, size);
      if (from) memcpy(place, (const void *)from, size); else memset(place, 0, size);
    });
    Barrier &b = barrier(c, load.barrier);
    if (!b.shown) fail("bytes come to a barrier object that no fence showed");
    b.tx -= box_bytes(*load.map);
    if (b.tx <= -(1 << 20)) fail("too many bytes come to a barrier");
    advance(b);
  }
}
inline void box_store(const void *map, std::vector<int> at, unsigned from) {
  Store store{(const Map *)map, from, {}, 0};
  check_map(store.map, (int)at.size());
  std::copy(at.begin(), at.end(), store.at);
  m->now->open.push_back(store);
}
inline void box_commit() {
  m->now->groups.push_back(m->now->open);
  m->now->open.clear();
}
// A store reads all of its bytes, later writes them.
inline void proceed(Cta &c, Store &store) {
  if (store.stage == 0) {
    std::vector<unsigned char> data;
    walk(*store.map, store.from, store.at, [&](unsigned from, u64, int size) {
      unsigned char *place = bytes(c, from, size);
      data.insert(data.end(), place, place + size);
    });
    size_t next = 0;
    walk(*store.map, store.from, store.at, [&](unsigned, u64 to, int size) {
      if (to) memcpy((void *)to, data.data() + next, size);
      next += size;
    });
  }
  ++store.stage;
  m->progress = true;
}
inline void box_wait(int pending, int stage) {
  Thread *me = m->now;
  until("cp.async.bulk.wait_group", [me, pending, stage] {
    const int count = (int)me->groups.size() - pending;
    for (int g = 0; g < count; ++g)
      for (Store &store : me->groups[g])
        if (store.stage < stage) return false;
    return true;
  });
}

// Generic writes reach the asynchronous proxy once their thread has fenced. ----------------------

inline void write(unsigned address, const void *data, unsigned size) {
  if (address % size) fail("a write of %u B at %u", size, address);
  bytes(cta(), address, size);
  const unsigned char *from = (const unsigned char *)data;
  m->now->unshown.push_back({address, {from, from + size}});
}
inline void fence_async() {
  for (auto &entry : m->now->unshown)
    memcpy(bytes(cta(), entry.first, (unsigned)entry.second.size()), entry.second.data(),
           entry.second.size());
  m->now->unshown.clear();
}
// Matrix i has its row r where thread 8 i + r says; threads 4 r .. 4 r + 3 hold it in pairs.
inline void stmatrix(unsigned address, std::vector<unsigned> words) {
  const int lane = m->now->id % 32, count = (int)words.size();
  std::vector<unsigned> row(4);
  for (int i = 0; i < count; ++i) {
    Warp &w = warp();
    together("stmatrix", words[i], [](Warp &) {});
    if (lane / 8 == i)
      for (int t = 0; t < 4; ++t) row[t] = (unsigned)w.out[lane % 8 * 4 + t];
    together("stmatrix", 0, [](Warp &) {});
  }
  if (lane / 8 < count) write(address, row.data(), 16);
}

// Matrix products. ---------------------------------------------------------------------------

inline float half_bits(unsigned short bits, int half) {
  if (!half) {
    unsigned wide = (unsigned)bits << 16;
    float f;
    memcpy(&f, &wide, 4);
    return f;
  }
  const int sign = bits >> 15, exponent = bits >> 10 & 31, fraction = bits & 1023;
  float f = exponent == 0    ? std::ldexp((float)fraction, -24)
            : exponent == 31 ? (fraction ? NAN : INFINITY)
                             : std::ldexp(1.0f + fraction / 1024.0f, exponent - 15);
  return sign ? -f : f;
}
// Element (row along the result, k) of an operand that a matrix descriptor names.
inline float operand(Cta &c, u64 descriptor, int row, int k, int across, int half) {
  const unsigned start = (descriptor & 0x3FFF) << 4;
  const unsigned leading = (descriptor >> 16 & 0x3FFF) << 4, stride = (descriptor >> 32 & 0x3FFF) << 4;
  const int mode = (int)(descriptor >> 62);
  if (descriptor >> 49 & 7) fail("a base offset of tiles that begin where the pattern does");
  const int span = mode == 0 ? 16 : mode == 1 ? 128 : mode == 2 ? 64 : 32;
  const int each = span / 2;  // elements of a row of the swizzle
  unsigned at = start;
  if (!across)
    at += row / 8 * stride + row % 8 * span + (mode ? k * 2 : k / 8 * leading + k % 8 * 2);
  else if (mode)
    at += row / each * leading + row % each * 2 + k / 8 * stride + k % 8 * span;
  else
    at += row / 8 * stride + row % 8 * 2 + k / 8 * leading + k % 8 * 16;
  unsigned short bits;
  memcpy(&bits, bytes(c, swizzled(at, mode ? span : 0), 2), 2);
  return half_bits(bits, half);
}
inline void multiply(Cta &c, const Product &p) {
  float a[64][16];
  std::vector<float> b(p.n * 16);
  for (int i = 0; i < 64; ++i)
    for (int k = 0; k < 16; ++k) a[i][k] = operand(c, p.a, i, k, p.transpose_a, p.half);
  for (int j = 0; j < p.n; ++j)
    for (int k = 0; k < 16; ++k) b[j * 16 + k] = operand(c, p.b, j, k, p.transpose_b, p.half);
  for (int t = 0; t < 128; ++t)
    for (int i = 0; i < p.n / 2; ++i) {
      const int row = t / 32 * 16 + t % 32 / 4 + 8 * (i / 2 % 2);
      const int column = 8 * (i / 4) + 2 * (t % 4) + i % 2;
      double sum = 0;
      for (int k = 0; k < 16; ++k) sum += (double)a[row][k] * b[column * 16 + k];
      float &d = *p.d[t][i];
      d = (float)(p.scale ? d + sum : sum);
    }
}
inline void run_product(Cta &c, Warpgroup &g) {
  multiply(c, *g.queue.front());
  g.queue.erase(g.queue.begin());
  if (!g.groups.empty() && --g.groups.front() == 0) {
    while (!g.groups.empty() && g.groups.front() == 0) g.groups.erase(g.groups.begin());
  } else if (g.groups.empty()) {
    --g.open;
  }
  m->progress = true;
}
inline Warpgroup &warpgroup() { return cta().groups[m->now->id / 128]; }
// All 128 threads of a warpgroup come to the same instruction; the last one does the work.
inline void gather(const char *what, const std::function<void(Warpgroup &)> &each,
                   const std::function<void(Warpgroup &)> &last) {
  Warpgroup &g = warpgroup();
  each(g);
  const long mine = g.generation;
  if (++g.came == 128) {
    g.came = 0;
    last(g);
    ++g.generation;
    m->progress = true;
  } else {
    until(what, [&g, mine] { return g.generation != mine; });
  }
}
inline void wgmma(int n, int half, std::vector<float *> d, u64 a, u64 b, int scale, int sign_a,
                  int sign_b, int transpose_a, int transpose_b) {
  if (n % 8 || n < 8 || n > 256 || (int)d.size() != n / 2) fail("wgmma with n %d", n);
  if (sign_a != 1 || sign_b != 1) fail("negated operands");
  const int lane = m->now->id % 128;
  Product product{n, scale, transpose_a, transpose_b, half, a, b, {}};
  gather(
      "wgmma",
      [&](Warpgroup &g) {
        if (!g.fenced[lane]) fail("wgmma.mma_async without wgmma.fence");
        if (!g.came) g.gathering = std::make_shared<Product>(product);
        const Product &first = *g.gathering;
        if (first.n != n || first.a != a || first.b != b || first.scale != scale)
          fail("threads of a warpgroup name different operands");
        g.gathering->d[lane] = d;
        if (!scale)
          for (float *place : d) *place = NAN;
      },
      [](Warpgroup &g) {
        g.queue.push_back(g.gathering);
        ++g.open;
      });
}
inline void wgmma_fence() {
  warpgroup().fenced[m->now->id % 128] = true;
}
inline void wgmma_commit() {
  gather("wgmma.commit_group", [](Warpgroup &) {}, [](Warpgroup &g) {
    if (g.open) g.groups.push_back(g.open);
    g.open = 0;
  });
}
inline void wgmma_wait(int pending) {
  Warpgroup &g = warpgroup();
  until("wgmma.wait_group", [&g, pending] { return (int)g.groups.size() <= pending; });
  if (!pending) g.fenced[m->now->id % 128] = false;
}

// Meetings. ----------------------------------------------------------------------------------

inline long named_come(int id, int size) {
  if (id < 0 || id > 15 || size % 32 || size < 32) fail("barrier %d of %d threads", id, size);
  Named &b = cta().named[id];
  if (b.came && b.size != size) fail("barrier %d of %d and %d threads", id, b.size, size);
  b.size = size;
  const long mine = b.generation;
  if (++b.came == size) {
    b.came = 0;
    ++b.generation;
  }
  m->progress = true;
  return mine;
}
inline void named_sync(int id, int size) {
  const long mine = named_come(id, size);
  Named &b = cta().named[id];
  until("bar.sync", [&b, mine] { return b.generation != mine; });
}
inline void named_arrive(int id, int size) { named_come(id, size); }
inline void cluster_arrive() {
  const int all = (int)(m->ctas.size() * m->ctas[0]->threads.size());
  if (++m->cluster_came == all) {
    m->cluster_came = 0;
    ++m->cluster_phase;
  }
  m->progress = true;
  m->now->where = "barrier.cluster.arrive";
  m->cluster_waits[m->now->cta->rank * m->ctas[0]->threads.size() + m->now->id]++;
}
inline void cluster_wait() {
  const int wanted =
      m->cluster_waits[m->now->cta->rank * m->ctas[0]->threads.size() + m->now->id];
  until("barrier.cluster.wait", [wanted] { return m->cluster_phase >= wanted; });
}
inline void registers(int count, int raise) {
  if (count % 8 || count < 24 || count > 256) fail("setmaxnreg %d", count);
  Cta &c = cta();
  together("setmaxnreg", 0, [&](Warp &w) {
    if (raise ? w.registers > count : w.registers < count)
      fail("setmaxnreg from %d to %d", w.registers, count);
    if (!raise) {
      c.free_registers += 32L * (w.registers - count);
      w.registers = count;
    }
  });
  if (!raise) return;
  Warp &w = warp();
  until("setmaxnreg.inc", [&c, &w, count] {
    if (w.registers == count) return true;
    if (c.free_registers < 32L * (count - w.registers)) return false;
    c.free_registers -= 32L * (count - w.registers);
    w.registers = count;
    return true;
  });
}

// The scheduler. -----------------------------------------------------------------------------

inline void enter() {
  try {
    m->body();
    Thread *me = m->now;
    if (!me->open.empty()) fail("copies to global memory are not committed");
    for (auto &group : me->groups)
      for (Store &store : group)
        if (store.stage < 2) fail("a thread leaves before its copies are complete");
  } catch (Fault &fault) {
    if (!m->failed) m->error = fault.text + " (block " + std::to_string(m->now->cta->index) +
                               ", thread " + std::to_string(m->now->id) + ")";
    m->failed = true;
  }
  m->now->done = true;
  m->progress = true;
  swapcontext(&m->now->context, &m->main);
}

// Some of what is asynchronous happens; with `all` at least one thing does if there is one.
inline void elsewhere(bool all) {
  std::shuffle(m->loads.begin(), m->loads.end(), m->random);
  size_t count = m->loads.empty() ? 0 : below((int)m->loads.size() + 1);
  if (all && !count && !m->loads.empty()) count = 1;
  for (; count; --count) {
    const Load load = m->loads.back();
    m->loads.pop_back();
    land(load);
  }
  for (auto &c : m->ctas) {
    for (Warpgroup &g : c->groups)
      while (!g.queue.empty() && (all || below(3) == 0)) run_product(*c, g);
    for (auto &t : c->threads)
      for (auto &group : t->groups)
        for (Store &store : group)
          if (store.stage < 2 && (all || below(4) == 0)) proceed(*c, store);
  }
}

inline void run_cluster() {
  for (;;) {
    bool left = false;
    m->progress = false;
    for (auto &c : m->ctas) {
      std::vector<int> order(c->warps.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = (int)i;
      std::shuffle(order.begin(), order.end(), m->random);
      for (int w : order) {
        Warp &warp = c->warps[w];
        // Warps may be held up for as long as it takes others to go round the ring.
        if (warp.asleep) --warp.asleep;
        else if (below(3000) == 0) warp.asleep = below(400);
        for (int lane = 0; lane < 32 && !m->failed; ++lane) {
          Thread &t = *c->threads[w * 32 + lane];
          if (t.done) continue;
          left = true;
          if (warp.asleep) { m->progress = true; continue; }
          if (t.blocked && !(*t.blocked)()) continue;
          m->progress = true;
          m->now = &t;
          swapcontext(&m->main, &t.context);
          if (m->failed) return;
        }
      }
    }
    if (!left) break;
    const bool stuck = !m->progress;
    elsewhere(stuck);
    if (stuck && !m->progress) {
      for (auto &c : m->ctas)
        for (auto &t : c->threads)
          if (!t->done) {
            m->error = std::string("nothing goes on: block ") + std::to_string(c->index) +
                       ", thread " + std::to_string(t->id) + " waits at " + t->where;
            m->failed = true;
            return;
          }
    }
  }
}

}  // namespace hw
