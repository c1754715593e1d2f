"""Where times of host programs lie in memory: logs, sheets, parts, slots and events.

Input: nothing. Output: offsets in bytes, for `stamps.py`, which writes, and `recording.py`, which
reads.

A *log* is what one recording keeps of one program: the list of its sheets, and those that no call
uses at the moment. A *sheet* has a part for each thread of a call, a *part* a few words, sums for
each step (its *slots*), and a ring of the last events.

Note [Slots]: a step has at least five words, a job of a region six, so no two of them begin in the
same 32 bytes of a program's words: the number of these 32 bytes is that of the slot. The words
before the first step have slot 0, which is that of whole calls.
"""

# A log: its first sheet, bytes of slots and events in a part, then idle sheets.
LOG_SHEETS, LOG_SLOTS_NBYTES, LOG_EVENTS, LOG_IDLE = 0, 8, 16, 64
IDLE = 32
LOG_NBYTES = LOG_IDLE + 8 * IDLE
# A sheet: the next one, its threads, bytes of a part, then the parts.
SHEET_NEXT, SHEET_THREADS, SHEET_STRIDE, SHEET_PARTS = 0, 8, 16, 64
# A part: how many events it has had, the last stamp, when the thread began and ended its work in
# the last parallel region; where the words are, how far the next part is, where events are, how
# many there is room for; the number of XLA's execution and that of the thread.
CURSOR, LAST, BEGAN, ENDED, WORDS, STRIDE, EVENTS, ROOM, RUN, THREAD = range(0, 80, 8)
PART_SLOTS = 128
# A slot: how often, ticks altogether, least and most; of a parallel region what was before the
# first and after the last thread worked, and what the busiest worked; of a job all threads' work.
COUNT, TOTAL, LEAST, MOST, OUTSIDE, LONGEST, BUSY = range(0, 56, 8)
SLOT_NBYTES, WORDS_OF_SLOT_NBYTES = 64, 32
# An event: begin, end, thread, place of the step in bytes from the words' start, XLA's execution.
EVENT_WORDS = 5
EVENT_NBYTES = 8 * EVENT_WORDS
