/* helm-inspect: what is in a checkpoint, and whether and why not HELM would load it.
 *
 * Start order only: options, reading, printing. The report is made in tools/inspect. */
#include <stdio.h>
#include <stdlib.h>

#include "common/base/args.h"
#include "common/base/printable.h"
#include "common/model/hub.h"
#include "tools/inspect/inspect.h"

static int print_json(const struct inspect_report *report, bool tensors)
{
    json_t *root = inspect_json(report, tensors);
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(root);
    if (!text) {
        fprintf(stderr, "helm-inspect: the report is not text or does not fit into memory\n");
        return 1;
    }
    puts(text);
    free(text);
    return 0;
}

/* Names in the file are untrusted: control characters in them are shown, not sent to the terminal. */
static int print_text(const struct inspect_report *report, bool tensors)
{
    FILE *out = printable_open(stdout);
    if (!out) {
        fprintf(stderr, "helm-inspect: no memory\n");
        return 1;
    }
    inspect_print(report, tensors, out);
    return fclose(out) ? 1 : 0;
}

int main(int argc, char **argv)
{
    bool json = false, tensors = false;
    struct args_parsed parsed;
    const struct args_option table[] = {
        {"json", 0, ARGS_FLAG, NULL, "one JSON object instead of text", .target = &json},
        {"tensors", 0, ARGS_FLAG, NULL, "list every tensor", .target = &tensors},
    };
    const struct args_spec spec = {
        .program = "helm-inspect",
        .usage = "DIR|FILE.gguf [--json] [--tensors]",
        .about = "Prints what is in a checkpoint or GGUF file: configuration, tensors, bytes.",
        ARGS_TABLE(table),
        .epilogue = "exit status: 0 it loads, 1 it does not, 2 usage",
        .min_operands = 1,
        .max_operands = 1};
    args_parse_main(&spec, argc, argv, &parsed);

    struct model model = {0};
    struct model_config config = {0};
    struct gguf header = {0};
    struct helm_err problem = {0}, ignored = {0};
    char *path = NULL;
    if (hub_locate(parsed.operand.item[0], &path, &problem)) {
        fprintf(stderr, "helm-inspect: %s\n", problem.text);
        return 1;
    }
    struct inspect_report report = {.folder = path, .problem = &problem};
    if (model_read(report.folder, &model, &problem) == 0) {
        report.model = &model;
        report.config = &model.config;
    } else if (model_read_config(report.folder, &config, &ignored) == 0) {
        report.config = &config; /* the configuration is sound; the weights are what does not load */
    }
    if (gguf_open(report.folder, &header, &ignored) == 0 && header.bytes) report.gguf = &header;
    int status = json ? print_json(&report, tensors) : print_text(&report, tensors);
    if (!report.model) status = 1;
    model_free(&model);
    model_config_free(&config);
    gguf_free(&header);
    free(path);
    return status;
}
