// Captures and graphs.
//
// A capture makes nodes of what its streams are given. A node comes after the last ones of its
// stream and after the nodes that events bring in; so a graph has exactly the edges that streams and
// events gave it, and a launch does the nodes in any order that these leave open.
#include <algorithm>

#include "state.h"

namespace emulated {

// A graph as it was instantiated. A launch copies what its nodes do, so a change of the parameters
// holds for later launches only.
struct Executable {
  std::vector<Work> works;
  std::vector<std::vector<std::shared_ptr<const Executable>>> bodies;  // of each, if it has any
  std::vector<std::vector<size_t>> after;
  std::map<const Node*, size_t> numbers;
  OpRef last_launch;  // launches of one executable do not overlap
};

static std::vector<std::unique_ptr<Capture>> all_captures;
static std::map<Graph*, std::unique_ptr<Graph>> graphs;
static std::set<Executable*> executables;
static std::map<size_t, CUstreamCaptureMode> modes;  // of threads
static uint64_t capture_ids = 0;
static std::map<CUgraphConditionalHandle, unsigned> conditions;  // what kernels have set

static Graph* body_of(const Graph& graph, CUgraph handle) {
  for (auto& node : graph.nodes)
    if (node->work.condition)
      for (auto& body : node->work.condition->bodies) {
        if ((CUgraph)body.get() == handle) return body.get();
        if (Graph* found = body_of(*body, handle)) return found;
      }
  return nullptr;
}

// One that was made, that is being captured, or that is the body of a node of these.
static Graph* graph_of(CUgraph handle) {
  std::vector<Graph*> roots;
  for (auto& [graph, owned] : graphs) roots.push_back(graph);
  for (auto& capture : all_captures) roots.push_back(capture->target);
  for (Graph* root : roots) {
    if ((CUgraph)root == handle) return root;
    if (Graph* found = body_of(*root, handle)) return found;
  }
  return nullptr;
}

std::vector<Capture*> captures() {
  std::vector<Capture*> found;
  for (auto& capture : all_captures) found.push_back(capture.get());
  return found;
}

CUresult invalidate(Capture& capture, CUresult result) {
  capture.invalid = true;
  return result;
}

bool forbids_unsafe_calls(const Capture& capture) {
  CUstreamCaptureMode mode = modes[this_thread()];
  bool ours = capture.thread == this_thread() && capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
  switch (mode) {
    case CU_STREAM_CAPTURE_MODE_RELAXED: return false;
    case CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: return ours;
    default: return ours || capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
  }
}

static void add_tail(std::vector<Node*>& tails, Node* node) {
  if (std::find(tails.begin(), tails.end(), node) == tails.end()) tails.push_back(node);
}

CUresult append(Stream& stream, Work work) {
  Capture& capture = *stream.capture;
  if (capture.invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  auto& nodes = capture.target->nodes;
  nodes.push_back(std::unique_ptr<Node>(new Node{std::move(work), stream.tails}));
  stream.tails = {nodes.back().get()};
  return CUDA_SUCCESS;
}

CUresult join_captured(Stream& stream, Event& event) {
  if (event.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream.capture && stream.capture != event.capture)
    return invalidate(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
  if (stream.context->legacy == &stream)
    return invalidate(*event.capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  stream.capture = event.capture;
  for (Node* node : event.tails) add_tail(stream.tails, node);
  return CUDA_SUCCESS;
}

// Whether nothing comes after the last nodes of a stream that the origin does not wait for.
static bool reaches(const std::vector<Node*>& from, const Node* wanted) {
  std::vector<Node*> open = from;
  std::set<Node*> seen;
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (node == wanted) return true;
    if (seen.insert(node).second) open.insert(open.end(), node->after.begin(), node->after.end());
  }
  return false;
}

static bool all_joined(const Capture& capture) {
  for (Stream* stream : streams_of(capture.origin->context))
    if (stream->capture == &capture && stream != capture.origin)
      for (Node* tail : stream->tails)
        if (!reaches(capture.origin->tails, tail)) return false;
  return true;
}

static Executable contents(const Graph& graph) {
  Executable made;
  for (auto& node : graph.nodes) {
    made.numbers[node.get()] = made.works.size();
    made.works.push_back(node->work);
    made.bodies.emplace_back();
    if (node->work.condition)
      for (auto& body : node->work.condition->bodies)
        made.bodies.back().push_back(std::make_shared<Executable>(contents(*body)));
    std::vector<size_t> after;
    for (Node* before : node->after) after.push_back(made.numbers.at(before));
    made.after.push_back(after);
  }
  return made;
}

static Ops enqueue_all(Context* context, const Executable& graph, const Ops& before);

// A turn of a node with bodies; `end` stands for all of them.
static void take_turn(Context* context, const std::shared_ptr<Condition>& condition,
                      const std::vector<std::shared_ptr<const Executable>>& bodies,
                      const OpRef& end) {
  unsigned value = conditions[condition->handle];
  bool is_loop = condition->type == CU_GRAPH_COND_TYPE_WHILE;
  size_t chosen = is_loop || value ? 0 : 1;
  if (context->broken || (is_loop && !value) || chosen >= bodies.size()) return open(end);
  Ops ops = enqueue_all(context, *bodies[chosen], {});
  OpRef next = enqueue_after(context, new_lane(), ops, [=] {
    is_loop ? take_turn(context, condition, bodies, end) : open(end);
  });
  next->always = true;
}

static Ops enqueue_all(Context* context, const Executable& graph, const Ops& before) {
  Ops ops;
  for (size_t i = 0; i < graph.works.size(); ++i) {
    Ops after = before;
    for (size_t number : graph.after[i]) after.push_back(ops[number]);
    const Work& work = graph.works[i];
    std::function<void()> run = work.run;
    if (work.call) {
      KernelCall call = *work.call;
      run = [=] { run_call(context, call); };
    }
    if (work.condition) {
      OpRef end = gate(context);
      auto condition = work.condition;
      auto bodies = graph.bodies[i];
      run = [=] { take_turn(context, condition, bodies, end); };
      enqueue_after(context, new_lane(), after, std::move(run))->always = true;
      ops.push_back(end);
      continue;
    }
    ops.push_back(enqueue_after(context, new_lane(), after, std::move(run), work.on_host));
  }
  return ops;
}

static void launch(Executable& graph, Stream& stream) {
  Ops before = before_next(stream);
  before.push_back(graph.last_launch);
  Context* context = stream.context;
  Ops ops = enqueue_all(context, graph, before);
  ops.insert(ops.end(), before.begin(), before.end());
  stream.last = graph.last_launch = enqueue_after(context, stream.lane, ops, nullptr);
}

static bool work_of(Executable* graph, const Node* node, Work** work) {
  if (!executables.count(graph)) return false;
  auto found = graph->numbers.find(node);
  if (found == graph->numbers.end()) return false;
  *work = &graph->works[found->second];
  return true;
}

}  // namespace emulated

using namespace emulated;

#define STREAM(handle)                                                             \
  Stream* stream;                                                                  \
  if (!from_handle(handle, entry.context, &stream)) return CUDA_ERROR_INVALID_HANDLE

EXPORTED CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  ENTER(entry, Entry, false);
  std::swap(*mode, modes[this_thread()]);
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  ENTER(entry, Entry);
  STREAM(handle);
  if (stream == entry.context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  auto graph = std::make_unique<Graph>();
  Graph* target = graph.get();
  all_captures.push_back(std::unique_ptr<Capture>(
      new Capture{++capture_ids, mode, stream, this_thread(), std::move(graph), target}));
  stream->capture = all_captures.back().get();
  stream->tails.clear();
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph,
                                                      const CUgraphNode* after,
                                                      const CUgraphEdgeData*, size_t count,
                                                      CUstreamCaptureMode mode) {
  ENTER(entry, Entry);
  STREAM(handle);
  Graph* target = graph_of(graph);
  if (!target) return CUDA_ERROR_INVALID_VALUE;
  if (stream == entry.context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  all_captures.push_back(std::unique_ptr<Capture>(
      new Capture{++capture_ids, mode, stream, this_thread(), nullptr, target}));
  stream->capture = all_captures.back().get();
  stream->tails.assign((Node* const*)after, (Node* const*)after + count);
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode* nodes,
                                                               const CUgraphEdgeData*, size_t count,
                                                               unsigned flags) {
  ENTER(entry, Entry);
  STREAM(handle);
  if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->tails.clear();
  for (size_t i = 0; i < count; ++i) add_tail(stream->tails, (Node*)nodes[i]);
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph* made) {
  ENTER(entry, Entry);
  STREAM(handle);
  Capture* capture = stream->capture;
  if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != this_thread())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  CUresult result = capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                    : all_joined(*capture) ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  for (Stream* other : streams_of(entry.context))
    if (other->capture == capture) {
      other->capture = nullptr;
      other->tails.clear();
    }
  forget_events_of(capture);
  *made = nullptr;
  if (!result) {
    *made = (CUgraph)capture->target;
    if (capture->graph) graphs[capture->target] = std::move(capture->graph);
  }
  all_captures.erase(std::find_if(all_captures.begin(), all_captures.end(),
                                  [&](auto& one) { return one.get() == capture; }));
  return result;
}

EXPORTED CUresult CUDAAPI cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  ENTER(entry, Entry);
  STREAM(handle);
  *status = !stream->capture          ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamGetCaptureInfo_v3(
    CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
    const CUgraphNode** after, const CUgraphEdgeData** edges, size_t* count) {
  ENTER(entry, Entry);
  STREAM(handle);
  Capture* capture = stream->capture;
  *status = !capture          ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id) *id = capture->id;
  if (graph) *graph = (CUgraph)capture->target;
  if (after) *after = (const CUgraphNode*)stream->tails.data();
  if (edges) *edges = nullptr;
  if (count) *count = stream->tails.size();
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus* status,
                                                    cuuint64_t* id, CUgraph* graph,
                                                    const CUgraphNode** after, size_t* count) {
  return cuStreamGetCaptureInfo_v3(handle, status, id, graph, after, nullptr, count);
}

// ---------------------------------------------------------------- graphs

EXPORTED CUresult CUDAAPI cuGraphCreate(CUgraph* made, unsigned) {
  ENTER(entry, Entry, false);
  auto graph = std::make_unique<Graph>();
  Graph* key = graph.get();
  graphs[key] = std::move(graph);
  *made = (CUgraph)key;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode* made, CUgraph handle,
                                                  const CUgraphNode* after, size_t count,
                                                  const CUDA_KERNEL_NODE_PARAMS* p) {
  ENTER(entry, Entry);
  auto found = graphs.find((Graph*)handle);
  if (found == graphs.end()) return CUDA_ERROR_INVALID_VALUE;
  Work work = {CU_GRAPH_NODE_TYPE_KERNEL, nullptr};
  const unsigned* grid = &p->gridDimX;
  CUresult result =
      make_call(p->func, grid, p->sharedMemBytes, p->kernelParams, p->extra, &work.call);
  if (result) return result;
  Node* const* nodes = (Node* const*)after;
  found->second->nodes.push_back(
      std::unique_ptr<Node>(new Node{work, std::vector<Node*>(nodes, nodes + count)}));
  *made = (CUgraphNode)found->second->nodes.back().get();
  return CUDA_SUCCESS;
}

// Called by kernels, which run under the lock.
EXPORTED void cudaGraphSetConditional(CUgraphConditionalHandle handle, unsigned value) {
  conditions[handle] = value;
}

EXPORTED CUresult CUDAAPI cuGraphConditionalHandleCreate(CUgraphConditionalHandle* made,
                                                         CUgraph graph, CUcontext, unsigned value,
                                                         unsigned) {
  ENTER(entry, Entry);
  if (!graph_of(graph)) return CUDA_ERROR_INVALID_VALUE;
  *made = conditions.size() + 1;
  conditions[*made] = value;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode* made, CUgraph handle,
                                            const CUgraphNode* after, const CUgraphEdgeData*,
                                            size_t count, CUgraphNodeParams* params) {
  ENTER(entry, Entry);
  Graph* graph = graph_of(handle);
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  if (params->type != CU_GRAPH_NODE_TYPE_CONDITIONAL) return CUDA_ERROR_NOT_SUPPORTED;
  CUDA_CONDITIONAL_NODE_PARAMS& given = params->conditional;
  unsigned most = given.type == CU_GRAPH_COND_TYPE_IF ? 2 : 1;
  if (given.type == CU_GRAPH_COND_TYPE_SWITCH) return CUDA_ERROR_NOT_SUPPORTED;
  if (!given.size || given.size > most || !conditions.count(given.handle))
    return CUDA_ERROR_INVALID_VALUE;
  auto condition = std::make_shared<Condition>();
  condition->handle = given.handle;
  condition->type = given.type;
  for (unsigned i = 0; i < given.size; ++i) {
    condition->bodies.push_back(std::make_unique<Graph>());
    condition->handles.push_back((CUgraph)condition->bodies.back().get());
  }
  given.phGraph_out = condition->handles.data();
  Work work = {CU_GRAPH_NODE_TYPE_CONDITIONAL, nullptr};
  work.condition = condition;
  Node* const* nodes = (Node* const*)after;
  graph->nodes.push_back(
      std::unique_ptr<Node>(new Node{work, std::vector<Node*>(nodes, nodes + count)}));
  *made = (CUgraphNode)graph->nodes.back().get();
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
  ENTER(entry, Entry, false);
  return graphs.erase((Graph*)graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORTED CUresult CUDAAPI cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  ENTER(entry, Entry, false);
  auto found = graphs.find((Graph*)handle);
  if (found == graphs.end()) return CUDA_ERROR_INVALID_VALUE;
  auto& all = found->second->nodes;
  if (nodes)
    for (size_t i = 0; i < *count && i < all.size(); ++i) nodes[i] = (CUgraphNode)all[i].get();
  *count = nodes ? std::min(*count, all.size()) : all.size();
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph handle, CUgraphNode* from, CUgraphNode* to,
                                             CUgraphEdgeData*, size_t* count) {
  ENTER(entry, Entry, false);
  auto found = graphs.find((Graph*)handle);
  if (found == graphs.end()) return CUDA_ERROR_INVALID_VALUE;
  size_t number = 0;
  for (auto& node : found->second->nodes)
    for (Node* before : node->after) {
      if (from && to && number < *count) {
        from[number] = (CUgraphNode)before;
        to[number] = (CUgraphNode)node.get();
      }
      ++number;
    }
  *count = number;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  ENTER(entry, Entry, false);
  *type = ((Node*)node)->work.type;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuGraphKernelNodeGetParams_v2(CUgraphNode handle,
                                                        CUDA_KERNEL_NODE_PARAMS* p) {
  ENTER(entry, Entry, false);
  Node* node = (Node*)handle;
  if (!node->work.call) return CUDA_ERROR_INVALID_VALUE;
  KernelCall& call = *node->work.call;
  *p = {};
  p->func = function_of(call);
  std::copy(call.grid, call.grid + 6, &p->gridDimX);
  p->sharedMemBytes = call.shared;
  p->kernelParams = call.pointers.data();
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph handle,
                                                      unsigned long long) {
  ENTER(entry, Entry);
  auto found = graphs.find((Graph*)handle);
  if (found == graphs.end()) return CUDA_ERROR_INVALID_VALUE;
  Executable* graph = new Executable(contents(*found->second));
  executables.insert(graph);
  *made = (CUgraphExec)graph;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec graph, CUgraphNode node,
                                                            const CUDA_KERNEL_NODE_PARAMS* p) {
  ENTER(entry, Entry);
  Work* work;
  if (!work_of((Executable*)graph, (const Node*)node, &work) || !work->call)
    return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<KernelCall> call;
  const unsigned* grid = &p->gridDimX;
  CUresult result = make_call(p->func, grid, p->sharedMemBytes, p->kernelParams, p->extra, &call);
  if (!result) work->call = call;
  return result;
}

// The same nodes with other parameters: of the same kinds, with the same edges, in the same order.
EXPORTED CUresult CUDAAPI cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph graph,
                                               CUgraphExecUpdateResultInfo* info) {
  ENTER(entry, Entry);
  Executable* old = (Executable*)handle;
  auto found = graphs.find((Graph*)graph);
  if (!executables.count(old) || found == graphs.end()) return CUDA_ERROR_INVALID_VALUE;
  Executable given = contents(*found->second);
  *info = {CU_GRAPH_EXEC_UPDATE_SUCCESS, nullptr, nullptr};
  for (auto& bodies : given.bodies)
    if (!bodies.empty()) info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  if (given.after != old->after) info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  for (size_t i = 0; !info->result && i < given.works.size(); ++i)
    if (given.works[i].type != old->works[i].type)
      info->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
  if (info->result) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  old->works = given.works;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuGraphUpload(CUgraphExec, CUstream) { return CUDA_SUCCESS; }

EXPORTED CUresult CUDAAPI cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
  ENTER(entry, Entry);
  STREAM(stream_handle);
  Executable* graph = (Executable*)handle;
  if (!executables.count(graph)) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture) return invalidate(*stream->capture, CUDA_ERROR_NOT_SUPPORTED);
  launch(*graph, *stream);
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec handle) {
  ENTER(entry, Entry, false);
  Executable* graph = (Executable*)handle;
  if (!executables.erase(graph)) return CUDA_ERROR_INVALID_VALUE;
  delete graph;
  return CUDA_SUCCESS;
}
