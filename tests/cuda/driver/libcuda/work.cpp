// Work that waits, and the order in which it is done: late, and random among the legal ones.
//
// Nothing runs when it is enqueued, or little: a program that reads too early, or relies on what a
// stream "has surely done by now", is found out. A stream may be far ahead of the others or far
// behind. All is decided by one seed, STAGEJIT_EMULATED_SEED, so that what failed fails again.
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>

#include "state.h"

namespace emulated {

static uint64_t random_state = 1;
static double haste = 0;  // how likely something runs at once
static Ops ready;
static size_t waiting_ops = 0, host_ops = 0;
static std::condition_variable_any host_op_done;
static std::unordered_map<unsigned, double> pace;  // of each lane
static int until_pace_changes = 0;

uint64_t draw(uint64_t below) {
  random_state += 0x9E3779B97F4A7C15u;  // splitmix64
  uint64_t z = random_state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return (z ^ (z >> 31)) % below;
}

void seed(uint64_t number) {
  random_state = number;
  pace.clear();
  until_pace_changes = 0;
  static const double kinds[] = {0, 0, 0.2, 0.9};
  haste = kinds[draw(4)];
}

size_t pending() { return waiting_ops; }

static double now_ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

static double pace_of(unsigned lane) {
  auto found = pace.find(lane);
  if (found != pace.end()) return found->second;
  static const double kinds[] = {1, 1, 30, 1000};
  return pace[lane] = kinds[draw(4)];
}

static OpRef take_one() {
  if (until_pace_changes-- <= 0) {
    pace.clear();
    until_pace_changes = 1 + int(draw(64));
  }
  double sum = 0;
  for (const OpRef& op : ready) sum += pace_of(op->lane);
  double at = sum * double(draw(1u << 30)) / double(1u << 30);
  size_t chosen = 0;
  while (chosen + 1 < ready.size() && (at -= pace_of(ready[chosen]->lane)) >= 0) ++chosen;
  OpRef op = ready[chosen];
  ready.erase(ready.begin() + long(chosen));
  return op;
}

static void finish(const OpRef& op) {
  op->done = true;
  op->finished_ms = now_ms();
  op->work = nullptr;
  --waiting_ops;
  for (const OpRef& next : op->then)
    if (!--next->waiting) ready.push_back(next);
  op->then.clear();
}

static void run_on_host(const OpRef& op) {
  ++host_ops;
  lock.unlock();  // it may wait for another thread that calls the driver
  op->work();
  lock.lock();
  --host_ops;
  finish(op);
  host_op_done.notify_all();
}

static bool host_op_is_ready() {
  for (const OpRef& op : ready)
    if (op->on_host) return true;
  return false;
}

// Does one thing, or waits for another thread that does. False: nothing is left to do.
static bool step() {
  if (ready.empty()) {
    if (!host_ops) return false;
    host_op_done.wait(lock);
    return true;
  }
  OpRef op = take_one();
  if (op->on_host) {
    run_on_host(op);
    return true;
  }
  if (op->work && op->context->alive && (op->always || !op->context->broken)) op->work();
  finish(op);
  return true;
}

OpRef enqueue_after(Context* context, unsigned lane, const Ops& after, std::function<void()> work,
                    bool on_host) {
  OpRef op = std::make_shared<Op>();
  op->work = std::move(work);
  op->context = context;
  op->lane = lane;
  op->on_host = on_host;
  ++waiting_ops;
  for (const OpRef& before : after)
    if (before && !before->done) {
      before->then.push_back(op);
      ++op->waiting;
    }
  if (!op->waiting) ready.push_back(op);
  return op;
}

OpRef gate(Context* context) {
  OpRef op = std::make_shared<Op>();
  op->context = context;
  op->lane = new_lane();
  op->waiting = 1;
  ++waiting_ops;
  return op;
}

void open(const OpRef& gate) {
  if (!--gate->waiting) ready.push_back(gate);
}

OpRef enqueue(Stream& stream, std::function<void()> work, bool on_host) {
  OpRef op = enqueue_after(stream.context, stream.lane, before_next(stream), std::move(work),
                           on_host);
  stream.last = op;
  while (!ready.empty() && !host_op_is_ready() && double(draw(1000)) < haste * 1000) step();
  return op;
}

void advance(const OpRef& op) {
  while (op && !op->done)
    if (!step()) {
      fprintf(stderr, "emulated driver: work waits for what never comes\n");
      abort();
    }
}

void advance_all() {
  while (step()) {
  }
}

void advance_a_little() {
  for (uint64_t left = draw(4); left; --left)
    if (ready.empty() || host_op_is_ready() || !step()) return;
}

}  // namespace emulated
