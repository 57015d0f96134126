/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What the C library does, a line each; tests/e2e/library.rs does the same in Rust and expects the
 * same lines.
 *
 *	library SOCKET
 */
#define _GNU_SOURCE
#include <errno.h>
#include <prezero.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE	(2UL << 20)

static void failed(const char *what, int result)
{
	printf("%s: %s: %s\n", what, strerrorname_np(-result), prezero_last_error());
}

static struct prezero *connect_to(const char *socket)
{
	struct prezero *connection;
	int result = prezero_connect(socket, 0, &connection);

	if (result) {
		failed("connect", result);
		exit(1);
	}
	return connection;
}

static struct prezero_loan *lend(struct prezero *connection, const char *what,
				 const struct prezero_request *request)
{
	struct prezero_loan *loan;
	int result = prezero_lend(connection, request, &loan);

	if (result) {
		failed(what, result);
		return NULL;
	}
	printf("%s: %lu bytes, %lu ready, %zu blocks, pages of %lu, kept %d\n", what,
	       prezero_loan_bytes(loan), prezero_loan_ready_bytes(loan), prezero_loan_parts(loan),
	       prezero_loan_page_bytes(loan), prezero_loan_is_kept(loan));
	return loan;
}

static unsigned char *map(struct prezero_loan *loan, size_t *bytes)
{
	void *memory, *again;

	if (prezero_map(loan, &memory, bytes) || prezero_map(loan, &again, NULL)) {
		failed("map", -EIO);
		exit(1);
	}
	if (memory != again)
		printf("the second mapping is another\n");
	return memory;
}

static unsigned long sum(const unsigned char *memory, size_t bytes)
{
	unsigned long sum = 0;

	for (size_t i = 0; i < bytes; i++)
		sum += memory[i];
	return sum;
}

static void status(struct prezero *connection)
{
	struct prezero_level level;
	size_t count;

	if (prezero_status(connection, &level, 1, &count))
		exit(1);
	printf("status: %zu levels, node %u, pages of %lu: %lu ready, %lu lent\n", count, level.node,
	       level.page_bytes, level.ready_pages, level.lent_pages);
}

int main(int argc, char **argv)
{
	struct prezero *connection;
	struct prezero_request request = PREZERO_REQUEST_INIT;
	struct prezero_loan *loan;
	struct prezero_part part;
	size_t bytes;

	if (argc != 2)
		return 2;
	failed("nobody there", prezero_connect("/nowhere/socket", 0, &connection));
	connection = connect_to(argv[1]);
	printf("version: %s\n", prezero_version());
	status(connection);

	request.bytes = 5 * PAGE;
	loan = lend(connection, "several blocks", &request);
	unsigned char *memory = map(loan, &bytes);
	printf("mapped: %zu bytes, sum %lu\n", bytes, sum(memory, bytes));
	memory[bytes - 1] = 7;
	for (size_t i = 0; i < prezero_loan_parts(loan); i++) {
		if (prezero_loan_part(loan, i, &part))
			return 1;
		printf("block: %lu bytes, %lu ready, node %u, descriptor %s\n", part.bytes,
		       part.ready_bytes, part.node, part.fd > 2 ? "open" : "missing");
	}
	/* The last block alone has what was written at the end of the row. */
	unsigned char *block = mmap(NULL, part.bytes, PROT_READ, MAP_SHARED, part.fd, 0);
	printf("the last block: sum %lu\n", sum(block, part.bytes));
	munmap(block, part.bytes);
	failed("no such block", prezero_loan_part(loan, 99, &part));
	status(connection);
	prezero_return(loan);

	request = (struct prezero_request)PREZERO_REQUEST_INIT;
	request.bytes = 2 * PAGE;
	request.owner = "somebody";
	request.keep_seconds = 60;
	request.flags = PREZERO_SINGLE;
	loan = lend(connection, "an owner's first", &request);
	map(loan, NULL)[5] = 9;
	prezero_return(loan);
	loan = lend(connection, "an owner's second", &request);
	printf("content: %d\n", map(loan, NULL)[5]);
	prezero_return(loan);

	request = (struct prezero_request)PREZERO_REQUEST_INIT;
	request.bytes = 4096;
	lend(connection, "half a page", &request);
	request.bytes = 4096 * PAGE;
	lend(connection, "too much", &request);
	request.bytes = 1UL << 30;
	request.page_bytes = 1UL << 30;
	lend(connection, "pages of another size", &request);
	request.page_bytes = 12345;
	printf("no page size: %s\n", strerrorname_np(-prezero_lend(connection, &request, &loan)));
	request = (struct prezero_request)PREZERO_REQUEST_INIT;
	request.bytes = PAGE;
	request.owner = "not/a name";
	printf("no name: %s\n", strerrorname_np(-prezero_lend(connection, &request, &loan)));

	/* What only C can do wrong. */
	request.owner = NULL;
	request.size = 8;
	printf("a small request: %d\n", prezero_lend(connection, &request, &loan) == -EINVAL);
	struct { struct prezero_request request; uint64_t later; } later = { PREZERO_REQUEST_INIT, 1 };
	later.request.size = sizeof(later);
	later.request.bytes = PAGE;
	printf("a field of later: %d\n", prezero_lend(connection, &later.request, &loan) == -EINVAL);
	later.request.flags = 1 << 20;
	printf("an unknown flag: %d\n", prezero_lend(connection, &later.request, &loan) == -EINVAL);
	printf("null: %d %d %d %d\n", prezero_lend(NULL, &request, &loan) == -EINVAL,
	       prezero_lend(connection, NULL, &loan) == -EINVAL,
	       prezero_map(NULL, NULL, NULL) == -EINVAL,
	       prezero_connect(argv[1], 0, NULL) == -EINVAL);
	prezero_return(NULL);
	prezero_disconnect(NULL);
	printf("advice: %s\n", prezero_strerror(-ENOMEM));

	struct prezero_watch *watch;
	struct prezero_level level;
	size_t count;
	if (prezero_watch_open(argv[1], PREZERO_ANY_NODE, 0, 1000, 50, &watch))
		return 1;
	if (prezero_watch_next(watch, &level, 1, &count))
		return 1;
	printf("watched: %zu, pages of %lu\n", count, level.page_bytes);
	prezero_watch_close(watch);
	prezero_disconnect(connection);
	return 0;
}
