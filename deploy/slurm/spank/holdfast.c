/* A SPANK plugin that gives Slurm's own commands the options of `holdfast srun`, and does nothing else.
 *
 * `srun --auto-resume=1 ...` replaces itself by `holdfast srun` with the same words and the same environment, before it
 * asks Slurm for anything. `sbatch --holdfast=spares=1` and `salloc --holdfast=...` have every srun of the job's script
 * do so. A srun that asks for nothing is not touched. plugstack.conf(5):
 *
 *     optional /etc/slurm/holdfast.so [/path/of/holdfast]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(holdfast, 1)

/* From sbatch to the script's srun. Slurm passes on every variable that begins with SLURM, also with --export=NONE. */
#define OF_JOB "SLURM_HOLDFAST"
/* The process that was handed over. exec(2) keeps its number, so that a srun that comes back here is known. */
#define HANDED "HOLDFAST_SPANK_PID"
#define AUTO_RESUME "auto-resume"
#define BLOCK 65536

static int resume = -1; /* of --auto-resume; -1: not said */

/* holdfast srun reads the value from its own command line; here it only has to be one. */
static int take_resume(int val, const char *arg, int remote)
{
	if (remote)
		return 0;
	if (!arg || (strcmp(arg, "0") && strcmp(arg, "1")))
		return -1;
	resume = *arg == '1';
	return 0;
}

static int take_other(int val, const char *arg, int remote)
{
	return 0;
}

static int take_job(int val, const char *arg, int remote);

static struct spank_option of_srun[] = {
	{ AUTO_RESUME, "1", "run the step again in its allocation when it fails (holdfast srun)", 1, 0, take_resume },
	{ "spares", "K", "with --auto-resume=1: nodes that are kept free for it", 1, 0, take_other },
	{ "policy", "NAME", "with --auto-resume=1: a preset or a policy file", 1, 0, take_other },
	{ "max-restarts", "N", "with --auto-resume=1: restarts without progress in between", 1, 0, take_other },
	{ "job-dir", "DIR", "with --auto-resume=1: the job's folder", 1, 0, take_other },
	SPANK_OPTIONS_TABLE_END
};
static struct spank_option of_job = {
	"holdfast", "OPTION=VALUE,...", "options of `holdfast srun` for every srun of the script", 1, 0, take_job
};

/* One OPTION=VALUE of --holdfast, `length` bytes long: is it one of srun's options above? */
static int is_known(const char *pair, size_t length)
{
	const char *equals = memchr(pair, '=', length);

	for (struct spank_option *one = of_srun; equals && one->name; one++)
		if (strlen(one->name) == (size_t)(equals - pair) && !strncmp(pair, one->name, equals - pair))
			return 1;
	return 0;
}

static int take_job(int val, const char *arg, int remote)
{
	if (remote)
		return 0;
	for (const char *pair = arg; pair; pair = strchr(pair, ',') ? strchr(pair, ',') + 1 : NULL) {
		if (!is_known(pair, strcspn(pair, ","))) {
			slurm_error("--holdfast=%s: write options of `holdfast srun`, such as auto-resume=1,spares=1", arg);
			return -1;
		}
	}
	return arg && !setenv(OF_JOB, arg, 1) ? 0 : -1;
}

int slurm_spank_init(spank_t spank, int ac, char **av)
{
	spank_context_t context = spank_context();

	/* Where the tasks are the options only have to be known. */
	if (context == S_CTX_LOCAL || context == S_CTX_REMOTE)
		for (struct spank_option *one = of_srun; one->name; one++)
			spank_option_register(spank, one);
	if (context == S_CTX_ALLOCATOR || context == S_CTX_REMOTE)
		spank_option_register(spank, &of_job);
	if (context == S_CTX_ALLOCATOR)
		unsetenv(OF_JOB); /* of the job in which sbatch is called: not of the new one */
	return ESPANK_SUCCESS;
}

struct words {
	char **all;
	size_t count;
};

static void add(struct words *words, char *word)
{
	if (!(words->all = realloc(words->all, (words->count + 2) * sizeof(*words->all))) || !word)
		abort(); /* no memory for a few words */
	words->all[words->count++] = word;
	words->all[words->count] = NULL;
}

/* Everything in a file of /proc: words, each ended by a zero byte. Sets its length; NULL: it cannot be read. */
static char *read_all(const char *name, size_t *length)
{
	FILE *file = fopen(name, "re");
	char *text = NULL;
	size_t got = 0;

	*length = 0;
	while (file && (text = realloc(text, *length + BLOCK)) && (got = fread(text + *length, 1, BLOCK, file)) > 0)
		*length += got;
	if (text)
		text[*length] = '\0';
	if (file)
		fclose(file);
	return text;
}

/* Become PROGRAM srun, with the job's options and the words and the environment that this srun was started with: its
 * own parsing has changed neither there. Returns only where that fails. */
static void hand_over(const char *program, const char *job_options)
{
	struct words argv = { 0 }, env = { 0 };
	size_t argv_length, env_length;
	char *given = read_all("/proc/self/cmdline", &argv_length), *had = read_all("/proc/self/environ", &env_length);
	char *options = strdup(job_options), *one;

	if (!given || !had || !options)
		return;
	add(&argv, "holdfast");
	add(&argv, "srun");
	if (*options)
		add(&argv, "--" AUTO_RESUME "=1");
	for (char *pair = strtok(options, ","); pair; pair = strtok(NULL, ","))
		add(&argv, asprintf(&one, "--%s", pair) > 0 ? one : NULL);
	for (char *word = given + strlen(given) + 1; word < given + argv_length; word += strlen(word) + 1)
		add(&argv, word);
	for (char *entry = had; entry < had + env_length; entry += strlen(entry) + 1)
		if (strncmp(entry, OF_JOB "=", sizeof(OF_JOB)) && strncmp(entry, HANDED "=", sizeof(HANDED)))
			add(&env, entry);
	add(&env, asprintf(&one, HANDED "=%d", (int)getpid()) > 0 ? one : NULL);
	execvpe(program, argv.all, env.all);
}

int slurm_spank_init_post_opt(spank_t spank, int ac, char **av)
{
	const char *handed = getenv(HANDED), *of_this_job = getenv(OF_JOB);
	const char *program = ac > 0 ? av[0] : "holdfast";

	if (spank_context() != S_CTX_LOCAL || resume == 0 || (resume < 0 && !of_this_job))
		return ESPANK_SUCCESS;
	if (handed && atoi(handed) == (int)getpid()) {
		slurm_error("holdfast srun did not take the option: write --" AUTO_RESUME "=1 in full");
		exit(1);
	}
	hand_over(program, of_this_job ? of_this_job : "");
	slurm_error("--" AUTO_RESUME "=1 needs Holdfast, and `%s` %s", program,
		    errno == ENOENT && !strchr(program, '/') ? "is not on the PATH" : strerror(errno));
	exit(1);
}
