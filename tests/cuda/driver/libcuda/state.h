// What the parts of the emulated driver share: contexts, memory, work that waits, captures.
//
// Invariant: everything here is read and written under `Entry`, which each function of the driver
// holds for as long as it runs; kernels run under it too, functions of the host do not.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda_api.h"

namespace emulated {

struct Context;
struct Stream;
struct Event;
struct Module;
struct Kernel;
struct Graph;
struct Node;
struct Capture;

// ------------------------------------------------------------------ work (work.cpp)

// Something that a stream does, once all that it comes after is done.
struct Op {
  std::function<void()> work;
  Context* context = nullptr;
  unsigned lane = 0;        // what shares a fate: a stream, or a branch of a graph
  bool done = false;
  bool on_host = false;     // runs without the lock
  double finished_ms = 0;
  bool always = false;      // runs in a broken context, too
  int waiting = 0;          // ops before it that are not done
  std::vector<std::shared_ptr<Op>> then;
};
using OpRef = std::shared_ptr<Op>;
using Ops = std::vector<OpRef>;

OpRef enqueue(Stream& stream, std::function<void()> work, bool on_host = false);
OpRef enqueue_after(Context* context, unsigned lane, const Ops& after, std::function<void()> work,
                    bool on_host = false);
OpRef gate(Context* context);   // is done once it is opened
void open(const OpRef& gate);
void advance(const OpRef& op);  // until it is done
void advance_all();             // until nothing waits
void advance_a_little();        // what a query sees happen; never a function of the host
size_t pending();
uint64_t draw(uint64_t below);  // a random number of this run
void seed(uint64_t number);

// ------------------------------------------------------------------ contexts (contexts.cpp)

struct Context {
  bool alive = true;
  int retained = 0;
  CUresult broken = CUDA_SUCCESS;  // by a kernel: nothing works in this context any more
  std::string why;
  Stream* legacy = nullptr;
};

extern std::mutex lock;
Context* current();  // of this thread, or nullptr
void break_context(Context* context, CUresult code, const std::string& why);
const std::string& last_failure();
bool from_handle(CUcontext handle, Context** context);

// Held by each function of the driver; `result` is what it must return where it is no success.
struct Entry {
  explicit Entry(bool needs_context = true);
  std::lock_guard<std::mutex> held;
  Context* context = nullptr;
  CUresult result = CUDA_SUCCESS;
};
// A call that no capture allows; `Entry` that also ends the captures it breaks.
struct UnsafeEntry : Entry {
  UnsafeEntry();
};

#define ENTER(name, kind, ...) \
  kind name{__VA_ARGS__};      \
  if (name.result) return name.result

// ------------------------------------------------------------------ memory (memory.cpp)

struct Allocation {
  uintptr_t address, mapped;
  size_t nbytes, mapped_nbytes;
  Context* context;
  bool accessible;
};
CUresult allocate(Context* context, size_t nbytes, bool accessible, CUdeviceptr* address);
void make_accessible(uintptr_t address);
void make_inaccessible(uintptr_t address);
bool release(uintptr_t address);
void release_all(Context* context);
Allocation* find(uintptr_t address);
bool is_pinned(const void* address);
size_t used_nbytes();
size_t total_nbytes();
std::string damage();  // of the bytes beside allocations, "" where there is none

// ------------------------------------------------------------------ streams (streams.cpp)

struct Stream {
  Context* context;
  bool blocking;
  unsigned lane;
  OpRef last;
  Capture* capture = nullptr;
  std::vector<Node*> tails;  // of the capture: what comes next comes after these
};
struct Event {
  Context* context;
  unsigned flags;
  OpRef recorded;
  Capture* capture = nullptr;
  std::vector<Node*> tails;
};
bool from_handle(CUstream handle, Context* context, Stream** stream);
unsigned new_lane();
Ops before_next(Stream& stream);  // what its next op comes after
void forget_streams(Context* context);
void forget_events_of(Capture* capture);  // its events were never recorded
std::vector<Stream*> streams_of(Context* context);

// Either enqueues, or appends a node to the capture of the stream.
struct Work {
  CUgraphNodeType type;
  std::function<void()> run;
  bool on_host = false;
  std::shared_ptr<struct KernelCall> call = nullptr;  // of a kernel
  std::shared_ptr<struct Condition> condition = nullptr;
};
CUresult submit(Stream& stream, Work work);

// ------------------------------------------------------------------ kernels (modules.cpp)

struct KernelCall {
  Kernel* kernel = nullptr;
  unsigned grid[6] = {1, 1, 1, 1, 1, 1};
  unsigned shared = 0;
  std::vector<char> arguments;
  std::vector<void*> pointers;  // to each of them, as the driver hands them out
};
CUresult make_call(CUfunction function, const unsigned* grid, unsigned shared, void** params,
                   void** extra, std::shared_ptr<KernelCall>* call);
void run_call(Context* context, const KernelCall& call);
CUfunction function_of(const KernelCall& call);
void forget_modules(Context* context);

// ------------------------------------------------------------------ graphs (graphs.cpp)

struct Node {
  Work work;
  std::vector<Node*> after;
};
struct Graph {
  std::vector<std::unique_ptr<Node>> nodes;
};
// What a node repeats, or does or leaves, as the value of a handle says.
struct Condition {
  CUgraphConditionalHandle handle;
  CUgraphConditionalNodeType type;
  std::vector<std::unique_ptr<Graph>> bodies;
  std::vector<CUgraph> handles;  // of these, as the driver hands them out
};
struct Capture {
  uint64_t id;
  CUstreamCaptureMode mode;
  Stream* origin;
  size_t thread;
  std::unique_ptr<Graph> graph;  // none where it adds to a graph that there is
  Graph* target;
  bool invalid = false;
};
CUresult append(Stream& stream, Work work);
CUresult join_captured(Stream& stream, Event& event);  // a wait for an event of a capture
std::vector<Capture*> captures();
CUresult invalidate(Capture& capture, CUresult result);
size_t this_thread();
bool forbids_unsafe_calls(const Capture& capture);

}  // namespace emulated
