/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A SPANK plugin: `srun --prezero=16G`, `sbatch --prezero=16G`, as any user. The prolog reads the size
 * as SPANK_PREZERO and lends as much, and job_submit.lua counts it against the node's resource. With
 * Slurm's headers:
 *
 *   gcc -shared -fPIC -o prezero.so prezero.c
 *
 * and in plugstack.conf: `required /etc/slurm/prezero.so`
 */
#include <slurm/spank.h>

SPANK_PLUGIN(prezero, 1)

static int set_size(int value, const char *size, int remote);

static struct spank_option size_option = {
	"prezero", "SIZE", "Borrow SIZE of zeroed huge pages on each node, as in 16G.", 1, 0, set_size,
};

/* The size, as the caller wrote it. */
static const char *size;

static int set_size(int value, const char *text, int remote)
{
	(void)value;
	(void)remote;
	size = text;
	return 0;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	return spank_option_register(spank, &size_option) == ESPANK_SUCCESS ? 0 : -1;
}

/* In srun and sbatch, before the job is sent: prolog and epilog have it as SPANK_PREZERO. */
int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	if (size == 0 || spank_remote(spank) != 0)
		return 0;
	return spank_job_control_setenv(spank, "PREZERO", size, 1) == ESPANK_SUCCESS ? 0 : -1;
}
