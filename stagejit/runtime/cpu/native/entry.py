"""The one FFI target of all programs, as LLVM IR: it finds a program's code and keeps it alive.

Input: nothing but XLA's FFI and the type that XLA gives our state. Output: addresses of

    ptr  sj_instantiate(cf), sj_execute(cf)   the two stages that are registered with XLA
    void sj_program_add(record)               a program can be found from here on
    ptr  sj_program_acquire(key)              its record, with one more reference, or null
    void sj_program_release(record)           one reference less
    ptr  sj_program_next_dead()               a record without references, which is no longer found
    void sj_programs_lock(), sj_programs_unlock()
    i64  sj_type_id, ptr sj_type_info, ptr sj_dead    variables

Invariants: nothing here waits for Python; a record with references is in the table and its code
(the words that `sj_call` runs) is in memory; a record is returned by `sj_program_next_dead` at most
once.

Note [Who keeps code alive]: registrations with XLA last for ever, so a target for each program,
whose address is its code, would keep all code. Instead a custom call carries the program's key as
an attribute. XLA instantiates each call when it makes an executable (also one that it
deserializes), and gives us a place for state, which it destroys with the executable: when no Python
object, no C++ fast path and no call in flight has it any more. The state is a reference to the
record; at each call it is read again, which costs some nanoseconds.

Note [No Python below]: XLA destroys executables on any thread, with or without the interpreter's
lock. So the last release only puts the record in a list, from which Python takes it at leisure.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from stagejit.runtime import ffi_abi as abi
from stagejit.runtime.objects.engine import engine
from stagejit.runtime.objects.object_cache import ObjectCache

# A record: the next of its bucket, the next in the list of the dead, key, references, whether it is
# in the list, code, what runs it (`sj_call`, or what `stamps` has in its place), the log of times;
# a line further the count of calls, which every call writes, and of timed ones that run.
NEXT, NEXT_DEAD, KEY, REFERENCES, LISTED, CODE, RUN, LOG = range(0, 64, 8)
CALLS, ACTIVE = 64, 72
RECORD_NBYTES = 128
_BUCKETS = 1024
_STATE, _STATE_ARGS_NBYTES = 40, 48  # our state in the arguments of what sets and gets it
_LOST = (
    "stagejit: the machine code of this program is not in this process: another one made it, or it "
    "was freed. Next: lower the same function with stagejit first, and keep what comes out"
)


def addresses(support: Mapping[str, int], cache: ObjectCache | None = None) -> dict[str, int]:
    """Addresses of this module's functions and variables."""
    imports = {name: support[name] for name in ("sj_error", "sched_yield")}
    return engine().load({"sj_execute": entry_ir()}, imports, cache=cache)


@functools.cache
def entry_ir() -> str:
    """The module's text; the same on every run of a platform."""
    return (
        _DECLARATIONS
        + _LOCK
        + _TABLE
        + _DEAD
        + f'@sj.lost = private constant [{len(_LOST) + 1} x i8] c"{_LOST}\\00"\n'
        + _instantiate_ir()
        + _execute_ir()
    )


_DECLARATIONS = f"""
declare ptr @sj_error(ptr, i32, ptr)
declare i32 @sched_yield()
@sj_buckets = internal global [{_BUCKETS} x ptr] zeroinitializer, align 64
@sj_lock = internal global i64 0, align 64
@sj_dead = global ptr null
@sj_type_id = global i64 0
@sj_type_info = global {{i64, ptr, ptr}} {{i64 24, ptr null, ptr @sj_program_release}}
"""

_LOCK = """
define void @sj_programs_lock() nounwind {
entry:
  br label %try
try:
  %pair = cmpxchg ptr @sj_lock, i64 0, i64 1 acquire monotonic
  %got = extractvalue { i64, i1 } %pair, 1
  br i1 %got, label %out, label %wait
wait:
  %ignored = call i32 @sched_yield()
  br label %try
out:
  ret void
}

define void @sj_programs_unlock() nounwind {
  store atomic i64 0, ptr @sj_lock release, align 8
  ret void
}
"""

_TABLE = f"""
define internal ptr @sj_bucket(i64 %key) nounwind {{
  %number = urem i64 %key, {_BUCKETS}
  %bucket = getelementptr ptr, ptr @sj_buckets, i64 %number
  ret ptr %bucket
}}

define void @sj_program_add(ptr %record) nounwind {{
  call void @sj_programs_lock()
{abi.load("%key", "i64", "%record", KEY)}\
  %bucket = call ptr @sj_bucket(i64 %key)
  %first = load ptr, ptr %bucket
{abi.store("ptr", "%first", "%record", NEXT, "%next")}\
  store ptr %record, ptr %bucket
  call void @sj_programs_unlock()
  ret void
}}

define ptr @sj_program_acquire(i64 %key) nounwind {{
entry:
  call void @sj_programs_lock()
  %bucket = call ptr @sj_bucket(i64 %key)
  br label %look
look:
  %at = phi ptr [%bucket, %entry], [%record, %other]
  %record = load ptr, ptr %at
  %none = icmp eq ptr %record, null
  br i1 %none, label %out, label %compare
compare:
{abi.load("%its", "i64", "%record", KEY)}\
  %same = icmp eq i64 %its, %key
  br i1 %same, label %found, label %other
other:                                   ; the field NEXT is the record's first
  br label %look
found:
{abi.load("%references", "i64", "%record", REFERENCES)}\
  %more = add i64 %references, 1
{abi.store("i64", "%more", "%record", REFERENCES, "%to")}\
  br label %out
out:
  call void @sj_programs_unlock()
  ret ptr %record
}}
"""

_DEAD = f"""
define void @sj_program_release(ptr %record) nounwind {{
entry:
  call void @sj_programs_lock()
{abi.load("%references", "i64", "%record", REFERENCES)}\
  %less = sub i64 %references, 1
{abi.store("i64", "%less", "%record", REFERENCES, "%to")}\
{abi.load("%listed", "i64", "%record", LISTED)}\
  %both = or i64 %less, %listed
  %dead = icmp eq i64 %both, 0
  br i1 %dead, label %list, label %out
list:
  %first = load ptr, ptr @sj_dead
{abi.store("ptr", "%first", "%record", NEXT_DEAD, "%next")}\
{abi.store("i64", "1", "%record", LISTED, "%mark")}\
  store ptr %record, ptr @sj_dead
  br label %out
out:
  call void @sj_programs_unlock()
  ret void
}}

define ptr @sj_program_next_dead() nounwind {{
entry:
  call void @sj_programs_lock()
  br label %take
take:
  %record = load ptr, ptr @sj_dead
  %none = icmp eq ptr %record, null
  br i1 %none, label %out, label %listed
listed:
{abi.load("%next.dead", "ptr", "%record", NEXT_DEAD)}\
  store ptr %next.dead, ptr @sj_dead
{abi.store("i64", "0", "%record", LISTED, "%mark")}\
{abi.load("%references", "i64", "%record", REFERENCES)}\
  %alive = icmp ne i64 %references, 0
  br i1 %alive, label %take, label %unlink
unlink:
{abi.load("%key", "i64", "%record", KEY)}\
{abi.load("%next", "ptr", "%record", NEXT)}\
  %bucket = call ptr @sj_bucket(i64 %key)
  br label %look
look:
  %at = phi ptr [%bucket, %unlink], [%seen, %other]
  %seen = load ptr, ptr %at
  %same = icmp eq ptr %seen, %record
  br i1 %same, label %found, label %other
other:
  br label %look
found:
  store ptr %next, ptr %at
  br label %out
out:
  call void @sj_programs_unlock()
  ret ptr %record
}}
"""


def _stage_ir(name: str, state_type: str, work: str) -> str:
    """A function that XLA calls in a stage: it answers queries, or does its work with `%args`."""
    return f"""
define ptr @{name}(ptr %cf) nounwind {{
entry:
  %args = alloca [{_STATE_ARGS_NBYTES} x i8], align 16
{query_ir(f"  %state.type = {state_type}" + chr(10))}\
work:
{work}\
}}
"""


def _call_with_state_ir(function: str, at: int, state: str) -> str:
    """`%error` of XLA's function that sets our state to `state`, or puts it there."""
    fields = [
        (0, "i64", str(_STATE_ARGS_NBYTES)),
        (8, "ptr", "null"),
        (16, "ptr", "%ctx"),
        (24, "i32", str(abi.STAGE_INSTANTIATE)),
        (32, "ptr", "@sj_type_id"),
        (_STATE, "ptr", state),
    ]
    return (
        abi.load("%api", "ptr", "%cf", abi.FRAME_API)
        + abi.load("%ctx", "ptr", "%cf", abi.FRAME_CONTEXT)
        + abi.load(function, "ptr", "%api", at)
        + abi.fill("%args", fields)
        + f"  %error = call ptr {function}(ptr %args)\n"
        + "  %fine = icmp eq ptr %error, null\n"
    )


def _instantiate_ir() -> str:
    work = f"""\
{abi.load("%size", "i64", "%cf", abi.FRAME_STRUCT_SIZE)}\
  %size.ok = icmp uge i64 %size, {abi.FRAME_ATTRS_VALUES + 8}
  br i1 %size.ok, label %sized, label %lost
sized:
{abi.load("%count", "i64", "%cf", abi.FRAME_ATTRS_COUNT)}\
  %some = icmp uge i64 %count, 1
  br i1 %some, label %first, label %lost
first:                                   ; attributes are sorted by name, and ours begins with "key"
{abi.load("%types", "ptr", "%cf", abi.FRAME_ATTRS_TYPES)}\
  %type = load i32, ptr %types
  %scalar = icmp eq i32 %type, {abi.ATTRIBUTE_SCALAR}
  br i1 %scalar, label %keyed, label %lost
keyed:
{abi.load("%values", "ptr", "%cf", abi.FRAME_ATTRS_VALUES)}\
  %value = load ptr, ptr %values
{abi.load("%key.at", "ptr", "%value", abi.SCALAR_VALUE)}\
  %key = load i64, ptr %key.at
  %record = call ptr @sj_program_acquire(i64 %key)
  %is.there = icmp ne ptr %record, null
  br i1 %is.there, label %found, label %lost
found:
{_call_with_state_ir("%set", abi.API_STATE_SET, "%record")}\
  br i1 %fine, label %done, label %refused
refused:
  call void @sj_program_release(ptr %record)
  br label %done
done:
  ret ptr %error
lost:
  %not.here = call ptr @sj_error(ptr %cf, i32 {abi.FAILED_PRECONDITION}, ptr @sj.lost)
  ret ptr %not.here
"""
    return _stage_ir("sj_instantiate", "load i64, ptr @sj_type_id", work)


def _execute_ir() -> str:
    work = f"""\
{_call_with_state_ir("%get", abi.API_STATE_GET, "null")}\
  br i1 %fine, label %run, label %failed
run:
{abi.load("%record", "ptr", "%args", _STATE)}{abi.load("%code", "ptr", "%record", CODE)}\
{abi.field("%run.p", "%record", RUN)}\
  %function = load atomic ptr, ptr %run.p monotonic, align 8
{abi.field("%calls", "%record", CALLS)}\
  %ignored = atomicrmw add ptr %calls, i64 1 monotonic
  %result = call ptr %function(ptr %cf, ptr %code, ptr %record)
  ret ptr %result
failed:
  ret ptr %error
"""
    return _stage_ir("sj_execute", "add i64 0, 0", work)


def query_ir(state_type: str) -> str:
    """Answer XLA's metadata query: we speak the version that asks, and have no traits."""
    version = abi.METADATA_API_VERSION
    return (
        abi.load("%ext", "ptr", "%cf", abi.FRAME_EXTENSION)
        + "  %ext.none = icmp eq ptr %ext, null\n"
        + "  br i1 %ext.none, label %work, label %extended\nextended:\n"
        + abi.load("%ext.type", "i32", "%ext", abi.EXTENSION_TYPE)
        + f"  %is.query = icmp eq i32 %ext.type, {abi.EXTENSION_TYPE_METADATA}\n"
        + "  br i1 %is.query, label %query, label %work\nquery:\n"
        + abi.load("%md", "ptr", "%ext", abi.EXTENSION_METADATA)
        + abi.load("%q.api", "ptr", "%cf", abi.FRAME_API)
        + abi.load("%q.version", "i64", "%q.api", abi.API_VERSION_MAJOR)
        + abi.store("i64", str(abi.API_VERSION_NBYTES), "%md", version, "%md.0")
        + abi.store("ptr", "null", "%md", version + 8, "%md.1")
        + abi.store("i64", "%q.version", "%md", version + 16, "%md.2")
        + abi.store("i32", "0", "%md", abi.METADATA_TRAITS, "%md.3")
        + "  %md.size = load i64, ptr %md\n"
        + f"  %md.has = icmp uge i64 %md.size, {abi.METADATA_NBYTES_WITH_STATE}\n"
        + "  br i1 %md.has, label %query.state, label %query.done\nquery.state:\n"
        + state_type
        + abi.store("i64", "%state.type", "%md", abi.METADATA_STATE_TYPE_ID, "%md.4")
        + "  br label %query.done\nquery.done:\n  ret ptr null\n"
    )
