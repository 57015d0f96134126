// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * watch_and_zero TREE - zero huge pages as soon as they are freed
 *
 * The simplest thing an operator can do: watch zeroable_hugepages of every node
 * and page size with epoll, and whenever there is something to zero let eight
 * threads do it. Ends on SIGINT or SIGTERM, within one clearing unit.
 *
 * TREE is /sys/devices/system/node on a kernel that keeps zeroed pages, or where
 * a userspace provider shows the same files.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define THREADS 8
#define MAX_DOMAINS 256

struct domain {
	char path[PATH_MAX];	/* of its zeroable_hugepages */
	int fd;			/* main's, for reading and epoll */
	atomic_long zeroable;	/* as last read */
};

static struct domain domains[MAX_DOMAINS];
static int nr_domains;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static unsigned long generation;	/* counts what was found to do */
static atomic_bool stop;

/* Level on both sides: a number, read from the beginning, arms the next poll. */
static long read_count(int fd)
{
	char text[32];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return 0;	/* the node is going away */
	text[n] = '\0';
	return strtol(text, NULL, 10);
}

/*
 * Eight threads may be sent to one domain at once: they share its pages, none
 * is zeroed twice, and who comes too late returns at once. Each opens the file
 * anew, as writes through one open file wait for each other.
 */
static void zero_domain(struct domain *domain)
{
	int fd = open(domain->path, O_WRONLY | O_CLOEXEC);

	if (fd < 0) {
		if (errno != ENOENT)
			warn("%s", domain->path);
		return;
	}
	if (write(fd, "max", 3) < 0 && errno != EINTR && errno != ENODEV)
		warn("%s: cannot zero", domain->path);
	close(fd);
}

static void *zeroer(void *arg)
{
	int first = (int)(long)arg;
	unsigned long seen = 0;

	while (!stop) {
		pthread_mutex_lock(&lock);
		while (generation == seen && !stop)
			pthread_cond_wait(&work, &lock);
		seen = generation;
		pthread_mutex_unlock(&lock);

		/* Not all begin with the same one. */
		for (int i = 0; i < nr_domains && !stop; i++) {
			struct domain *domain =
				&domains[(first + i) % nr_domains];

			if (domain->zeroable > 0)
				zero_domain(domain);
		}
	}
	return NULL;
}

static void add_domain(const char *dir, const char *size, int epoll)
{
	struct domain *domain = &domains[nr_domains];
	struct epoll_event event = {
		.events = EPOLLPRI | EPOLLERR,
		.data.ptr = domain,
	};

	if (nr_domains == MAX_DOMAINS)
		errx(1, "more than %d nodes and page sizes", MAX_DOMAINS);
	if (snprintf(domain->path, PATH_MAX, "%s/%s/zeroable_hugepages", dir,
		     size) >= PATH_MAX)
		errx(1, "%s/%s: path too long", dir, size);
	domain->fd = open(domain->path, O_RDONLY | O_CLOEXEC);
	if (domain->fd < 0) {
		if (errno == ENOENT)
			return;
		err(1, "%s", domain->path);
	}
	if (epoll_ctl(epoll, EPOLL_CTL_ADD, domain->fd, &event))
		err(1, "epoll_ctl %s", domain->path);
	nr_domains++;
}

/* TREE/nodeN/hugepages/hugepages-SIZEkB/zeroable_hugepages */
static void find_domains(const char *tree, int epoll)
{
	DIR *nodes = opendir(tree);
	struct dirent *node, *size;

	if (!nodes)
		err(1, "%s", tree);
	while ((node = readdir(nodes))) {
		char dir[PATH_MAX];
		DIR *sizes;

		if (strncmp(node->d_name, "node", 4) ||
		    node->d_name[4] < '0' || node->d_name[4] > '9')
			continue;
		if (snprintf(dir, sizeof(dir), "%s/%s/hugepages", tree,
			     node->d_name) >= PATH_MAX)
			errx(1, "%s: path too long", tree);
		sizes = opendir(dir);
		if (!sizes)
			continue;
		while ((size = readdir(sizes)))
			if (!strncmp(size->d_name, "hugepages-", 10))
				add_domain(dir, size->d_name, epoll);
		closedir(sizes);
	}
	closedir(nodes);
	if (!nr_domains)
		errx(1, "%s: no zeroable_hugepages: not a tree that zeroes pages",
		     tree);
}

/* Read all that may have changed; whether there is something to do. */
static bool look(void)
{
	bool any = false;

	for (int i = 0; i < nr_domains; i++) {
		domains[i].zeroable = read_count(domains[i].fd);
		any |= domains[i].zeroable > 0;
	}
	return any;
}

static void nothing(int signal)
{
	(void)signal;	/* it is there to interrupt a write */
}

int main(int argc, char **argv)
{
	struct sigaction interrupt = { .sa_handler = nothing };
	struct epoll_event events[16], event = { .events = EPOLLIN };
	pthread_t threads[THREADS];
	sigset_t signals;
	int epoll, signal_fd;

	if (argc != 2)
		errx(2, "usage: %s TREE", argv[0]);

	sigemptyset(&signals);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGTERM);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	sigaction(SIGUSR1, &interrupt, NULL);	/* no SA_RESTART */

	epoll = epoll_create1(EPOLL_CLOEXEC);
	signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);
	if (epoll < 0 || signal_fd < 0 ||
	    epoll_ctl(epoll, EPOLL_CTL_ADD, signal_fd, &event))
		err(1, "epoll");
	find_domains(argv[1], epoll);

	for (long i = 0; i < THREADS; i++)
		if ((errno = pthread_create(&threads[i], NULL, zeroer,
					    (void *)i)))
			err(1, "pthread_create");

	while (!stop) {
		int n;

		/* Read first: what changed before the poll must not be missed. */
		if (look()) {
			pthread_mutex_lock(&lock);
			generation++;
			pthread_cond_broadcast(&work);
			pthread_mutex_unlock(&lock);
		}
		n = epoll_wait(epoll, events, 16, -1);
		if (n < 0 && errno != EINTR)
			err(1, "epoll_wait");
		for (int i = 0; i < n; i++)
			if (!events[i].data.ptr)
				stop = true;
	}

	/* A thread may just be on its way into write: ask until it has heard. */
	pthread_mutex_lock(&lock);
	pthread_cond_broadcast(&work);
	pthread_mutex_unlock(&lock);
	for (int i = 0; i < THREADS; i++)
		while (pthread_tryjoin_np(threads[i], NULL) == EBUSY) {
			pthread_kill(threads[i], SIGUSR1);
			usleep(1000);
		}
	for (int i = 0; i < nr_domains; i++)
		printf("%s: %ld left\n", domains[i].path,
		       read_count(domains[i].fd));
	return 0;
}
