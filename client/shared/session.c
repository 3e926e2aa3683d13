/* Opens what a command needs: a connection, a private daemon, a tokenizer. See cli.h.
 *
 * Called by the commands; everything lands in struct cli and is given back by cli_close. */
#include "client/shared/cli.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/shared/private_daemon.h"
#include "common/base/file.h"
#include "common/model/hub.h"

bool cli_has_daemon_option(const struct cli *cli)
{
    return cli->device || cli->plan || cli->profile || cli->strategy || cli->config || cli->kv_dtype ||
           cli->kernels || cli->activations || cli->exact || cli->log_level || cli->has_vram ||
           cli->has_host_memory || cli->has_ctx || cli->has_threads;
}

/* One Z85 key, with white space after it. A secret one may be readable by its owner only. */
static int read_key(const char *path, bool secret, char key[HELM_CURVE_KEY + 1], struct helm_err *err)
{
    char *text = NULL;
    size_t length = 0;
    struct stat st;
    if (secret && stat(path, &st) == 0 && (st.st_mode & (S_IRWXG | S_IRWXO)))
        return helm_fail(err, HELM_E_PERMISSION,
                         "%s has mode %04o: only its owner may have access (chmod 600)", path,
                         (unsigned)(st.st_mode & 07777));
    int rc = file_read(path, 4096, &text, &length, err);
    if (rc < 0) return rc;
    size_t n = strcspn(text, "\r\n\t ");
    if (n != HELM_CURVE_KEY || n + strspn(text + n, "\r\n\t ") != length) {
        rc = helm_fail(err, HELM_E_FORMAT, "%s: expected one Z85 key of %d characters", path, HELM_CURVE_KEY);
    } else {
        memcpy(key, text, n);
        key[n] = 0;
    }
    explicit_bzero(text, length);
    free(text);
    return rc;
}

static int connect_curve(struct cli *cli, struct helm_err *err)
{
    char daemon_key[HELM_CURVE_KEY + 1] = "", secret_key[HELM_CURVE_KEY + 1] = "";
    if (!cli->daemon_key_file || !cli->secret_key_file)
        return helm_fail(err, HELM_E_USAGE,
                         "--curve-daemon-key-file and --curve-secret-key-file need each other");
    int rc = read_key(cli->daemon_key_file, false, daemon_key, err);
    if (rc == 0) rc = read_key(cli->secret_key_file, true, secret_key, err);
    if (rc < 0)
        rc = err->code = HELM_E_USAGE; /* nothing was asked of a daemon yet */
    else
        rc = helm_connect_curve(cli->connect, daemon_key, secret_key, 0, &cli->client, err);
    explicit_bzero(secret_key, sizeof secret_key);
    return rc;
}

int cli_connect(struct cli *cli, struct helm_err *err)
{
    if (cli->daemon) return helm_connect(private_daemon_endpoint(cli->daemon), 0, &cli->client, err);
    if (cli->daemon_key_file || cli->secret_key_file) return connect_curve(cli, err);
    return helm_connect(cli->connect, 0, &cli->client, err);
}

int cli_locate(struct cli *cli, struct helm_err *err)
{
    int rc = 0;
    if (cli->model && !cli->located_model) {
        rc = hub_locate(cli->model, &cli->located_model, err);
        if (!rc) cli->model = cli->located_model;
    }
    if (!rc && cli->tokenizer && !cli->located_tokenizer) {
        rc = hub_locate(cli->tokenizer, &cli->located_tokenizer, err);
        if (!rc) cli->tokenizer = cli->located_tokenizer;
    }
    return rc;
}

void cli_name_model(const char *path, char *name, size_t size)
{
    static const char cache[] = "models--", suffix[] = ".gguf";
    const char *hub = strstr(path, cache), *last = path;
    if (hub) {
        const char *from = hub + strlen(cache), *end = strchr(from, '/');
        const char *divide = strstr(from, "--");
        const size_t length = end ? (size_t)(end - from) : strlen(from);
        if (divide && (size_t)(divide - from) < length) {
            snprintf(name, size, "%.*s/%.*s", (int)(divide - from), from,
                     (int)(length - (size_t)(divide - from) - 2), divide + 2);
            return;
        }
    }
    for (const char *at = path; *at; at++)
        if (at[0] == '/' && at[1]) last = at + 1;
    size_t length = strcspn(last, "/");
    if (length > strlen(suffix) && memcmp(last + length - strlen(suffix), suffix, strlen(suffix)) == 0)
        length -= strlen(suffix);
    snprintf(name, size, "%.*s", (int)length, last);
}

void cli_advise(const struct cli *cli, struct helm_err *err)
{
    const char *named = cli->connect ? cli->connect : getenv("HELM_ENDPOINT");
    const size_t length = strlen(err->text);
    if (err->code != HELM_E_NOT_FOUND || cli->daemon) return;
    const bool other = named && *named;
    snprintf(
        err->text + length, sizeof err->text - length,
        "; start one with `helmd --model PATH%s%.120s`, or give --model PATH for one of this command's own",
        other ? " --listen " : "", other ? named : "");
}

int cli_open(struct cli *cli)
{
    struct helm_err err = {0};
    if (cli->client) return CLI_EXIT_DONE;
    if (cli->connect && cli->model)
        return cli_usage(cli->global,
                         "--connect and --model exclude each other: --model starts a daemon of its own");
    if (!cli->model && cli_has_daemon_option(cli))
        return cli_usage(cli->global, "options of helmd need --model: a running daemon has its own");
    if (cli_locate(cli, &err)) return cli_fail(&err, false);
    if (cli->model) {
        int signal_number = 0;
        int rc = cli_catch_signals(cli, &err);
        if (rc == 0) rc = private_daemon_start(cli, &cli->daemon, &signal_number, &err);
        if (rc < 0) {
            if (signal_number) return CLI_EXIT_SIGNAL + signal_number;
            cli_complain(err.text);
            return private_daemon_exit(rc);
        }
    }
    int rc = cli_connect(cli, &err);
    if (rc == 0) return CLI_EXIT_DONE;
    cli_advise(cli, &err);
    cli_complain(err.text);
    return rc == HELM_E_USAGE ? CLI_EXIT_USAGE : CLI_EXIT_NO_DAEMON;
}

void cli_close(struct cli *cli)
{
    helm_disconnect(&cli->client);
    private_daemon_stop(&cli->daemon);
    helm_chat_close(&cli->chat);
    helm_tokenizer_close(cli->tok);
    cli->tok = NULL;
    free(cli->located_model);
    free(cli->located_tokenizer);
    cli->located_model = cli->located_tokenizer = NULL;
    if (cli->signal_fd >= 0) close(cli->signal_fd);
    cli->signal_fd = -1;
}

/* A tokenizer.json, by whatever name: neither a folder nor a GGUF file, which have more than a tokenizer. */
static bool is_tokenizer_json(const char *path)
{
    const size_t length = strlen(path);
    return access(path, F_OK) == 0 && !file_is_folder(path) &&
           (length < 5 || strcmp(path + length - 5, ".gguf") != 0);
}

/* The daemon's model, a folder or a GGUF file, as it is called on the daemon's machine, which need not be
 * this one. */
static int ask_model_folder(struct cli *cli, char **folder, struct helm_err *err)
{
    struct helm_model_info *info = NULL;
    int rc = helm_model_info(cli->client, CLI_ANSWER_MS, &info, err);
    if (rc < 0) return rc;
    if (access(info->folder, file_is_folder(info->folder) ? X_OK : R_OK) != 0)
        rc = helm_fail(err, HELM_E_NOT_FOUND,
                       "the daemon's model %.200s cannot be opened here (%s): --tokenizer DIR names a "
                       "folder with the model's tokenizer.json, tokenizer_config.json, "
                       "generation_config.json and chat template, or its GGUF file",
                       info->folder, strerror(errno));
    else if (!(*folder = strdup(info->folder)))
        rc = helm_fail(err, HELM_E_NOMEM, "no memory for a path");
    free(info);
    return rc;
}

int cli_text_folder(struct cli *cli, char **folder, struct helm_err *err)
{
    *folder = NULL;
    int rc = cli_locate(cli, err);
    if (rc) return rc;
    const char *named = cli->tokenizer && !is_tokenizer_json(cli->tokenizer) ? cli->tokenizer : cli->model;
    if (!named) return ask_model_folder(cli, folder, err);
    *folder = strdup(named);
    return *folder ? 0 : helm_fail(err, HELM_E_NOMEM, "no memory for a path");
}

static int open_tokenizer_file(struct cli *cli, const char *path, struct helm_err *err)
{
    char *text = NULL;
    size_t length = 0;
    int rc = file_read(path, CLI_TOKENIZER_MAX, &text, &length, err);
    if (rc == 0) rc = helm_tokenizer_open_memory(text, length, NULL, 0, &cli->tok, err);
    free(text);
    return rc;
}

int cli_open_tokenizer(struct cli *cli, struct helm_err *err)
{
    char *folder = NULL;
    if (cli->tok) return 0;
    int rc = cli_locate(cli, err);
    if (rc) return rc;
    if (cli->tokenizer && is_tokenizer_json(cli->tokenizer))
        return open_tokenizer_file(cli, cli->tokenizer, err);
    rc = cli_text_folder(cli, &folder, err);
    if (rc == 0) rc = helm_tokenizer_open(folder, &cli->tok, err);
    free(folder);
    return rc;
}

int cli_open_chat(struct cli *cli, struct helm_err *err)
{
    char *folder = NULL;
    if (cli->chat) return 0;
    int rc = cli_text_folder(cli, &folder, err);
    if (rc == 0) rc = helm_chat_open(folder, &cli->chat, err);
    if (rc == 0) cli->tags = reasoning_tags_of(helm_tokenizer_chat_template(cli->tok, NULL));
    free(folder);
    return rc;
}

void cli_find_ends(struct cli *cli)
{
    struct helm_err none = {0};
    (void)!cli_open_chat(cli, &none); /* without one, the known names are what there is */
    ends_find(cli->tok, cli->chat, UINT32_MAX, &cli->ends);
}

static_assert(HELM_CHAT_MARKS_MAX <= HELM_MARKS_MAX, "a conversation's marks fit a request");

int cli_encode_chat(const struct cli *cli, const struct helm_chat_message *messages, size_t count,
                    struct helm_chat_prompt *prompt, enum reasoning_at *at, struct helm_err *err)
{
    const unsigned flags =
        HELM_CHAT_GENERATION_PROMPT | (cli->allow_special ? HELM_CHAT_ALLOW_SPECIAL : HELM_CHAT_TEXT_IS_TEXT);
    const int rc = helm_chat_encode(cli->chat, cli->tok, messages, count, flags, prompt, err);
    *at = rc == 0 && cli->tags ? reasoning_after(cli->tags, prompt->text, prompt->length) : REASONING_FREE;
    return rc;
}
