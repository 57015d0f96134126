/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Borrows 64 MiB, writes to them, and returns them.
 *
 *	cc lend.c -o lend $(pkg-config --cflags --libs prezero)
 */
#include <err.h>
#include <prezero.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
	struct prezero_request request = PREZERO_REQUEST_INIT;
	struct prezero *connection;
	struct prezero_loan *loan;
	void *memory;
	size_t bytes;

	/* A null socket is the default one. */
	if (prezero_connect(getenv("PREZERO_SOCKET"), 0, &connection))
		errx(1, "%s", prezero_last_error());

	request.bytes = 64 << 20;
	if (prezero_lend(connection, &request, &loan) || prezero_map(loan, &memory, &bytes))
		errx(1, "%s", prezero_last_error());
	printf("%lu of %zu bytes were ready\n", prezero_loan_ready_bytes(loan), bytes);

	/* Zero, at the cost of page tables. */
	for (const char *at = memory; at < (char *)memory + bytes; at++)
		if (*at)
			errx(1, "the memory is not zero");
	strcpy(memory, "hello");
	printf("%zu bytes, all zero before \"%s\"\n", bytes, (char *)memory);

	/* Unmaps the memory and returns it. */
	prezero_return(loan);
	prezero_disconnect(connection);
	return 0;
}
