/* The report for people: a table for a terminal, rows of Markdown for a document. See bench.h. Pure output.
 */
#include <string.h>

#include "common/base/units.h"
#include "client/bench/bench.h"

const char *bench_model_name(const struct bench_group *group)
{
    const char *folder = group->info ? group->info->folder : group->model ? group->model : "";
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') length--;
    const char *name = folder;
    for (size_t i = 0; i + 1 < length; i++)
        if (folder[i] == '/') name = folder + i + 1;
    return name;
}

const char *bench_vram_text(const struct bench_group *group, char text[32])
{
    char size[UNITS_TEXT];
    if (!group->model)
        snprintf(text, 32, "daemon's");
    else if (group->vram_bytes)
        snprintf(text, 32, "%s", units_format_size(group->vram_bytes, size));
    else
        snprintf(text, 32, "all");
    return text;
}

/* "cpu", "gpu", "cpu+gpu": the processors that read weights. */
static void device_names(const struct bench_group *group, char *text, size_t size)
{
    size_t n = 0;
    *text = 0;
    for (uint32_t i = 0; i < group->device_count && n < size; i++)
        if (group->device[i].token_bytes)
            n += (size_t)snprintf(text + n, size - n, "%s%s", n ? "+" : "", group->device[i].name);
}

/* "cpu 88.1 of 92.0, gpu 12.0": GB/s over the whole of a token's time, and the limit where it is known. */
static void device_rates(const struct bench *bench, const struct bench_cell *cell, char *text, size_t size)
{
    const struct bench_group *group = &bench->group[cell->group];
    double tpot_ms = samples_quantile(&cell->server_tpot_ms, 0.5);
    size_t n = 0;
    snprintf(text, size, "-");
    for (uint32_t i = 0; tpot_ms > 0 && i < group->device_count && n < size; i++) {
        const struct bench_device *d = &group->device[i];
        double limit = bytes_limit(bench, d, samples_quantile(&cell->read_gb_s, 0.5));
        if (!d->token_bytes) continue;
        n += (size_t)snprintf(text + n, size - n, "%s%s %.2f", n ? ", " : "", d->name,
                              (double)d->token_bytes / tpot_ms * 1e-6);
        if (limit > 0 && n < size) n += (size_t)snprintf(text + n, size - n, " of %.2f", limit);
    }
}

struct row {
    char model[48], vram[32], where[32], ttft[48], tpot[64], decode[48], prefill[32], rates[96], ratio[32];
};

static void fill_row(const struct bench *bench, const struct bench_cell *cell, struct row *row)
{
    const struct bench_group *group = &bench->group[cell->group];
    memset(row, 0, sizeof *row);
    const char *name = bench_model_name(group);
    snprintf(row->model, sizeof row->model, "%.*s", (int)strcspn(name, "/"), name);
    bench_vram_text(group, row->vram);
    device_names(group, row->where, sizeof row->where);
    snprintf(row->ttft, sizeof row->ttft, "%.2f (%.2f-%.2f)", samples_quantile(&cell->ttft_ms, 0.5),
             samples_quantile(&cell->ttft_ms, 0.1), samples_quantile(&cell->ttft_ms, 0.9));
    snprintf(row->tpot, sizeof row->tpot, "%.3f / %.3f / %.3f", samples_quantile(&cell->gap_ms, 0.5),
             samples_quantile(&cell->gap_ms, 0.9), samples_quantile(&cell->gap_ms, 0.99));
    snprintf(row->decode, sizeof row->decode, "%.2f (%.2f-%.2f)", samples_quantile(&cell->decode_tok_s, 0.5),
             samples_quantile(&cell->decode_tok_s, 0.1), samples_quantile(&cell->decode_tok_s, 0.9));
    if (!cell->gap_ms.count) {
        snprintf(row->tpot, sizeof row->tpot, "-");
        snprintf(row->decode, sizeof row->decode, "-");
    }
    snprintf(row->prefill, sizeof row->prefill, "%.0f", samples_quantile(&cell->prefill_tok_s, 0.5));
    device_rates(bench, cell, row->rates, sizeof row->rates);
    if (cell->ratio.count)
        snprintf(row->ratio, sizeof row->ratio, "%.0f %%", 100 * samples_quantile(&cell->ratio, 0.5));
    else
        snprintf(row->ratio, sizeof row->ratio, "-");
}

static void print_machine(const struct bench *bench, FILE *out)
{
    if (!bench->read_gb_s.count) return;
    fprintf(out, "reading with %u threads: %.2f GB/s (%.2f-%.2f over %zu measurements)\n",
            bench->limit_threads, samples_quantile(&bench->read_gb_s, 0.5),
            samples_quantile(&bench->read_gb_s, 0.1), samples_quantile(&bench->read_gb_s, 0.9),
            bench->read_gb_s.count);
}

void text_table(const struct bench *bench, FILE *out)
{
    struct row row;
    fprintf(out, "%-20s %-10s %-8s %6s %6s  %-24s %-26s %-24s %9s  %-34s %s\n", "model", "vram", "where",
            "prompt", "output", "TTFT ms p50 (p10-p90)", "TPOT ms p50 / p90 / p99",
            "decode token/s (p10-p90)", "prefill/s", "weights GB/s of limit", "of bound");
    for (uint32_t i = 0; i < bench->cell_count; i++) {
        const struct bench_cell *cell = &bench->cell[i];
        fill_row(bench, cell, &row);
        fprintf(out, "%-20.20s %-10s %-8s %6u %6u  ", row.model, row.vram, row.where, cell->prompt_tokens,
                cell->output_tokens);
        if (cell->status)
            fprintf(out, "failed: %s\n", cell->err.text);
        else
            fprintf(out, "%-24s %-26s %-24s %9s  %-34s %s\n", row.ttft, row.tpot, row.decode, row.prefill,
                    row.rates, row.ratio);
    }
    print_machine(bench, out);
}

void text_markdown(const struct bench *bench, FILE *out)
{
    struct row row;
    fputs("| engine | model | VRAM | where | prompt + output | TTFT ms p50 (p10-p90) | TPOT ms p50 / p90 / "
          "p99 | decode "
          "token/s (p10-p90) | prefill token/s | weights GB/s of limit | of bound |\n"
          "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
          out);
    for (uint32_t i = 0; i < bench->cell_count; i++) {
        const struct bench_cell *cell = &bench->cell[i];
        fill_row(bench, cell, &row);
        fprintf(out, "| helm | %s | %s | %s | %u + %u | ", row.model, row.vram, row.where,
                cell->prompt_tokens, cell->output_tokens);
        if (cell->status)
            fprintf(out, "failed: %.200s | | | | | |\n", cell->err.text);
        else
            fprintf(out, "%s | %s | %s | %s | %s | %s |\n", row.ttft, row.tpot, row.decode, row.prefill,
                    row.rates, row.ratio);
    }
    fputc('\n', out);
    print_machine(bench, out);
}
