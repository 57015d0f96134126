/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * prezero.h - huge pages that are zero before anyone asks
 *
 * Link with -lprezero (pkg-config prezero). Functions return 0 or a negative errno where they can
 * fail; prezero_last_error() says what went wrong and what to do. A connection, a loan and a watch
 * are each for one thread at a time, different ones for different threads.
 *
 * Made from the Rust sources by cbindgen: PREZERO_BLESS=1 cargo test -p prezero --test header
 */

#ifndef PREZERO_H
#define PREZERO_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* A request with nothing set but that any node will do. */
#define PREZERO_REQUEST_INIT \
	{ .size = sizeof(struct prezero_request), .node = PREZERO_ANY_NODE }

/*
 In `prezero_request.node`: any node.
 */
#define PREZERO_ANY_NODE -1

/*
 In `prezero_request.flags`: the loan must be one file, for programs that pass its descriptor on.
 */
#define PREZERO_SINGLE 1

/*
 In `prezero_request.flags`: the loan lasts while any process maps it or has it open, with or
 without its lease's descriptor.
 */
#define PREZERO_HELD_BY_MEMORY 2

/*
 A connection to the daemon. To be used by one thread at a time.
 */
struct prezero;

/*
 A loan.
 */
struct prezero_loan;

/*
 A watch. To be used by one thread at a time.
 */
struct prezero_watch;

/*
 What to borrow. Fill it with PREZERO_REQUEST_INIT, then set what matters.
 */
struct prezero_request {
  /*
   sizeof(struct prezero_request): which fields the program knows.
   */
  uint32_t size;
  /*
   PREZERO_SINGLE, PREZERO_HELD_BY_MEMORY.
   */
  uint32_t flags;
  /*
   How much, in bytes: whole pages.
   */
  uint64_t bytes;
  /*
   In pages of how many bytes; 0 leaves it to the daemon.
   */
  uint64_t page_bytes;
  /*
   From which NUMA node; PREZERO_ANY_NODE takes any.
   */
  int32_t node;
  /*
   How many seconds the content stays for `owner` after its return.
   */
  uint32_t keep_seconds;
  /*
   Under which name, to get the content back after a restart; null for none.
   */
  const char *owner;
};

/*
 One block of a loan.
 */
struct prezero_part {
  /*
   Its descriptor, which stays the loan's: duplicate it to keep it. Map it MAP_SHARED.
   */
  int fd;
  /*
   Its NUMA node.
   */
  uint32_t node;
  /*
   Its length in bytes.
   */
  uint64_t bytes;
  /*
   Ready pages, counted from its start; the program's own faults fill the rest.
   */
  uint64_t ready_bytes;
};

/*
 The counts of one NUMA node and page size, in pages.
 */
struct prezero_level {
  /*
   The size of its pages in bytes.
   */
  uint64_t page_bytes;
  /*
   Known to be zero.
   */
  uint64_t ready_pages;
  /*
   Free, and possibly dirty.
   */
  uint64_t zeroable_pages;
  /*
   Being cleared.
   */
  uint64_t zeroing_pages;
  /*
   In clients' hands.
   */
  uint64_t lent_pages;
  /*
   The node.
   */
  uint32_t node;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Connects to the daemon that listens at `socket`, or at the usual place if it is null.

 `timeout_ms` bounds connecting and each answer; 0 stands for 10 s. Returns 0 and a connection,
 or a negative errno: -ENOENT or -ECONNREFUSED where no daemon listens.
 */
int prezero_connect(const char *socket, uint32_t timeout_ms, struct prezero **out);

/*
 Closes a connection; loans and watches stay. Null is allowed.
 */
void prezero_disconnect(struct prezero *connection);

/*
 What the last failed call of this thread had to say: lower case, with the value at fault and
 what to do about it. Empty if none has failed. Valid until the thread's next failure.
 */
const char *prezero_last_error(void);

/*
 What a result of this library means in general, for a negative errno as it was returned.
 */
const char *prezero_strerror(int result);

/*
 The library's version.
 */
const char *prezero_version(void);

/*
 Borrows memory. Never waits for zeroing: dirty parts come as an unbacked part, which the kernel
 zeroes when the program touches it.

 Returns 0 and a loan, or a negative errno: -EINVAL (a value is not allowed), -EACCES, -EDQUOT,
 -ENODEV (no such pages), -ENOMEM (too few), -EAGAIN (no answer in time).
 */
int prezero_lend(struct prezero *connection,
                 const struct prezero_request *request,
                 struct prezero_loan **out);

/*
 Maps all of a loan as one range, readable and writable, shared. A second call gives the same
 range again. It stays until prezero_return().
 */
int prezero_map(struct prezero_loan *loan, void **address, size_t *bytes);

/*
 Returns a loan: unmaps what prezero_map() mapped and closes its descriptors. It ends with the
 last duplicate and the last mapping in any process. Null is allowed.
 */
void prezero_return(struct prezero_loan *loan);

/*
 A loan's length in bytes; 0 for null.
 */
uint64_t prezero_loan_bytes(const struct prezero_loan *loan);

/*
 The ready bytes of a loan; 0 for null.
 */
uint64_t prezero_loan_ready_bytes(const struct prezero_loan *loan);

/*
 The size of a loan's pages in bytes; 0 for null.
 */
uint64_t prezero_loan_page_bytes(const struct prezero_loan *loan);

/*
 Whether a loan's content is what its owner left; if not it is zero.
 */
bool prezero_loan_is_kept(const struct prezero_loan *loan);

/*
 The lease's descriptor, which stays the loan's; -1 for null. The loan lasts while any duplicate
 of it is open: pass one on to a process that must keep it alive.
 */
int prezero_loan_lease_fd(const struct prezero_loan *loan);

/*
 How many blocks a loan has; 0 for null.
 */
size_t prezero_loan_parts(const struct prezero_loan *loan);

/*
 Describes block number `index` of a loan; -EINVAL if it has no such block.
 */
int prezero_loan_part(struct prezero_loan *loan, size_t index, struct prezero_part *out);

/*
 The counts of every node and page size, pools of one shape added up. `count` gets how many there
 are; the first `room` of them are written to `levels`.
 */
int prezero_status(struct prezero *connection,
                   struct prezero_level *levels,
                   size_t room,
                   size_t *count);

/*
 Watches levels: a report whenever a node's ready pages fall below `below`, one at once if they
 are; with `below` 0 one now and one whenever a count changes. Reports come at most each
 `interval_ms`, and the last state is never lost.

 `socket` as in prezero_connect(); `node` may be PREZERO_ANY_NODE and `page_bytes` 0.
 */
int prezero_watch_open(const char *socket,
                       int32_t node,
                       uint64_t page_bytes,
                       uint64_t below,
                       uint32_t interval_ms,
                       struct prezero_watch **out);

/*
 Waits for the next report, for ever if need be: `count` gets how many levels it has; the first
 `room` of them are written to `levels`. -ECONNRESET when the daemon is gone.
 */
int prezero_watch_next(struct prezero_watch *watch,
                       struct prezero_level *levels,
                       size_t room,
                       size_t *count);

/*
 Ends a watch. Null is allowed.
 */
void prezero_watch_close(struct prezero_watch *watch);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PREZERO_H */
