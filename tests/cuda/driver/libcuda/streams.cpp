// Streams and events.
//
// A stream does its work in order, each thing after the one before it. The legacy stream (0) comes
// after all that blocking streams have to do so far, and what they are given later comes after it.
#include <algorithm>

#include "state.h"

namespace emulated {

static std::vector<std::unique_ptr<Stream>> streams;
static std::set<Stream*> live;  // not destroyed: what a program may still name
static std::map<std::pair<size_t, Context*>, Stream*> of_threads;
static std::set<Event*> events;
static unsigned lanes = 0;

unsigned new_lane() { return ++lanes; }

static Stream* make_stream(Context* context, bool blocking) {
  auto is_over = [](const std::unique_ptr<Stream>& s) {
    return !live.count(s.get()) && (!s->last || s->last->done);
  };
  streams.erase(std::remove_if(streams.begin(), streams.end(), is_over), streams.end());
  streams.push_back(std::unique_ptr<Stream>(new Stream{context, blocking, new_lane(), {}, {}, {}}));
  live.insert(streams.back().get());
  return streams.back().get();
}

static Stream* legacy(Context* context) {
  if (!context->legacy) context->legacy = make_stream(context, false);
  return context->legacy;
}

bool from_handle(CUstream handle, Context* context, Stream** stream) {
  if (uintptr_t(handle) <= 1) {
    *stream = legacy(context);
  } else if (uintptr_t(handle) == 2) {
    Stream*& own = of_threads[{this_thread(), context}];
    if (!own) own = make_stream(context, true);
    *stream = own;
  } else {
    *stream = (Stream*)handle;
    return live.count(*stream) && (*stream)->context == context;
  }
  return true;
}

std::vector<Stream*> streams_of(Context* context) {
  std::vector<Stream*> found;
  for (auto& stream : streams)
    if (stream->context == context) found.push_back(stream.get());
  return found;
}

Ops before_next(Stream& stream) {
  Ops ops = {stream.last};
  Stream* first = stream.context->legacy;
  if (stream.blocking && first) ops.push_back(first->last);
  if (&stream == first)
    for (Stream* other : streams_of(stream.context))
      if (other->blocking) ops.push_back(other->last);
  return ops;
}

void forget_streams(Context* context) {
  auto is_of = [&](const std::unique_ptr<Stream>& s) { return s->context == context; };
  for (Stream* stream : streams_of(context)) live.erase(stream);
  streams.erase(std::remove_if(streams.begin(), streams.end(), is_of), streams.end());
  for (auto i = of_threads.begin(); i != of_threads.end();)
    i = i->first.second == context ? of_threads.erase(i) : std::next(i);
  for (auto i = events.begin(); i != events.end();)
    i = (*i)->context == context ? events.erase(i) : std::next(i);
  context->legacy = nullptr;
}

void forget_events_of(Capture* capture) {
  for (Event* event : events)
    if (event->capture == capture) {
      event->capture = nullptr;
      event->tails.clear();
    }
}

// The legacy stream would wait for blocking streams, also for those that only note what to do.
static Capture* would_wait_for_a_capture(Stream& stream) {
  if (&stream != stream.context->legacy) return nullptr;
  for (Stream* other : streams_of(stream.context))
    if (other->blocking && other->capture) return other->capture;
  return nullptr;
}

CUresult submit(Stream& stream, Work work) {
  if (stream.capture) return append(stream, std::move(work));
  if (Capture* capture = would_wait_for_a_capture(stream))
    return invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  enqueue(stream, std::move(work.run), work.on_host);
  return CUDA_SUCCESS;
}

static bool event_of(CUevent handle, Event** event) {
  *event = (Event*)handle;
  return events.count(*event);
}

}  // namespace emulated

using namespace emulated;

#define STREAM(handle)                                                             \
  Stream* stream;                                                                  \
  if (!from_handle(handle, entry.context, &stream)) return CUDA_ERROR_INVALID_HANDLE
#define EVENT(handle) \
  Event* event;       \
  if (!event_of(handle, &event)) return CUDA_ERROR_INVALID_HANDLE

EXPORTED CUresult CUDAAPI cuStreamCreate(CUstream* made, unsigned flags) {
  ENTER(entry, Entry);
  *made = (CUstream)make_stream(entry.context, !(flags & CU_STREAM_NON_BLOCKING));
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* made, unsigned flags, int) {
  return cuStreamCreate(made, flags);
}

EXPORTED CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

// What it has to do is done nevertheless.
EXPORTED CUresult CUDAAPI cuStreamDestroy_v2(CUstream handle) {
  ENTER(entry, Entry, false);
  Stream* stream = (Stream*)handle;
  if (!live.count(stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  live.erase(stream);
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamGetFlags(CUstream handle, unsigned* flags) {
  ENTER(entry, Entry);
  STREAM(handle);
  *flags = stream->blocking ? 0 : CU_STREAM_NON_BLOCKING;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* context) {
  ENTER(entry, Entry);
  STREAM(handle);
  *context = (CUcontext)stream->context;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
  ENTER(entry, UnsafeEntry);
  STREAM(handle);
  if (stream->capture) return invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  for (const OpRef& op : before_next(*stream)) advance(op);
  return entry.context->broken;
}

EXPORTED CUresult CUDAAPI cuStreamQuery(CUstream handle) {
  ENTER(entry, UnsafeEntry);
  STREAM(handle);
  if (stream->capture) return invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  advance_a_little();
  if (entry.context->broken) return entry.context->broken;
  for (const OpRef& op : before_next(*stream))
    if (op && !op->done) return CUDA_ERROR_NOT_READY;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned) {
  ENTER(entry, Entry);
  STREAM(handle);
  EVENT(event_handle);
  if (event->capture) return join_captured(*stream, *event);
  if (stream->capture)  // of an event that no capture knows: the graph could not wait for it
    return event->recorded
               ? invalidate(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
               : CUDA_SUCCESS;
  Ops after = before_next(*stream);
  after.push_back(event->recorded);
  stream->last = enqueue_after(entry.context, stream->lane, after, nullptr);
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  ENTER(entry, Entry);
  STREAM(handle);
  return submit(*stream, {CU_GRAPH_NODE_TYPE_HOST, [=] { function(data); }, true, nullptr});
}

// ---------------------------------------------------------------- events

EXPORTED CUresult CUDAAPI cuEventCreate(CUevent* made, unsigned flags) {
  ENTER(entry, Entry);
  Event* event = new Event{entry.context, flags, {}, {}, {}};
  events.insert(event);
  *made = (CUevent)event;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuEventDestroy_v2(CUevent handle) {
  ENTER(entry, Entry, false);
  EVENT(handle);
  events.erase(event);
  delete event;
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuEventRecord(CUevent event_handle, CUstream handle) {
  ENTER(entry, Entry);
  STREAM(handle);
  EVENT(event_handle);
  if (event->context != entry.context) return CUDA_ERROR_INVALID_HANDLE;
  event->capture = stream->capture;
  event->tails = stream->tails;
  if (stream->capture) return stream->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                                       : CUDA_SUCCESS;
  if (Capture* capture = would_wait_for_a_capture(*stream))
    return invalidate(*capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  event->recorded = enqueue(*stream, [] {});
  return CUDA_SUCCESS;
}

EXPORTED CUresult CUDAAPI cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) {
  return cuEventRecord(event, stream);
}

EXPORTED CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
  ENTER(entry, UnsafeEntry);
  EVENT(handle);
  if (event->capture) return invalidate(*event->capture, CUDA_ERROR_CAPTURED_EVENT);
  OpRef recorded = event->recorded;  // another thread may record it anew meanwhile
  advance(recorded);
  return entry.context->broken;
}

EXPORTED CUresult CUDAAPI cuEventQuery(CUevent handle) {
  ENTER(entry, UnsafeEntry);
  EVENT(handle);
  if (event->capture) return invalidate(*event->capture, CUDA_ERROR_CAPTURED_EVENT);
  advance_a_little();
  if (entry.context->broken) return entry.context->broken;
  return !event->recorded || event->recorded->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

EXPORTED CUresult CUDAAPI cuEventElapsedTime_v2(float* ms, CUevent from, CUevent to) {
  ENTER(entry, Entry);
  Event* ends[2];
  if (!event_of(from, &ends[0]) || !event_of(to, &ends[1])) return CUDA_ERROR_INVALID_HANDLE;
  for (Event* event : ends) {
    if (!event->recorded || (event->flags & CU_EVENT_DISABLE_TIMING))
      return CUDA_ERROR_INVALID_HANDLE;
    if (!event->recorded->done) return CUDA_ERROR_NOT_READY;
  }
  *ms = float(ends[1]->recorded->finished_ms - ends[0]->recorded->finished_ms);
  return CUDA_SUCCESS;
}
