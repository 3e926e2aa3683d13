/* A profile at what the machine's memory gives now. See now.h. */
#include "daemon/planner/profile/now.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/units.h"
#include "daemon/planner/profile/policy.h"

#define RATE_MAX 1e18

static const struct {
    const char *name;
    size_t at;
} members[] = {{"read", offsetof(struct profile_now, read)},
               {"read_beside", offsetof(struct profile_now, read_beside)},
               {"h2d", offsetof(struct profile_now, h2d)},
               {"h2d_beside", offsetof(struct profile_now, h2d_beside)}};
#define MEMBERS (sizeof members / sizeof *members)

static double *member(struct profile_now *now, size_t i)
{
    return (double *)(void *)((char *)now + members[i].at);
}

/* ---- by what memory is read ---- */

static bool is_plain(const struct profile_reads *reads)
{
    return !profile_format_has_rates(reads->format);
}

/* Their rates in the profile: alone, beside copies, and copies beside them (plain ones). */
struct then {
    double read, read_beside, h2d_beside;
};

static struct then then_of(const struct profile *p, const struct profile_reads *reads)
{
    const struct profile_format *f = &p->format[reads->format];
    if (is_plain(reads))
        return (struct then){profile_table_at(&p->cpu.read, p->cpu.threads).value, p->cpu.read_beside.value,
                             p->link.h2d_beside_read.value};
    if (reads->inputs == LINEAR_INT8)
        return (struct then){f->cpu_int8_gemv.value, f->cpu_int8_gemv_beside.value, 0};
    return (struct then){f->cpu_gemv.value, f->cpu_gemv_beside.value, 0};
}

struct profile_reads profile_reads_of(const struct profile *profile, enum tensor_format format,
                                      enum linear_inputs inputs)
{
    const struct profile_reads ways[] = {{format, inputs},
                                         {format, LINEAR_EXACT},
                                         {FORMAT_BF16, LINEAR_EXACT}};
    size_t i = 0;
    while (i < 2 && (is_plain(&ways[i]) || then_of(profile, &ways[i]).read <= 0)) i++;
    return ways[i];
}

int profile_now_check(const struct profile *profile, const struct profile_now *now, struct helm_err *err)
{
    if (is_plain(&now->reads) || then_of(profile, &now->reads).read > 0) return 0;
    return helm_fail(err, HELM_E_MISMATCH,
                     "rates of now are of %s with %s activations, which the profile has no rate of",
                     tensor_format_name(now->reads.format), linear_inputs_name(now->reads.inputs));
}

/* ---- the file ---- */

json_t *profile_now_to_json(const struct profile_now *now)
{
    struct profile_now copy = *now;
    json_t *json = json_pack("{s:i}", "helm_now", 1);
    if (json && !is_plain(&now->reads)) {
        json_object_set_new(json, "format", json_string(tensor_format_name(now->reads.format)));
        json_object_set_new(json, "activations", json_string(linear_inputs_name(now->reads.inputs)));
    }
    for (size_t i = 0; i < MEMBERS && json; i++)
        if (*member(&copy, i) > 0) json_object_set_new(json, members[i].name, json_real(*member(&copy, i)));
    if (json) json_object_set_new(json, "busy_percent", json_integer(now->busy_percent));
    return json;
}

/* Plain ones without "format". */
static int reads_from_json(const json_t *json, struct profile_reads *reads, struct helm_err *err)
{
    const char *format = tensor_format_name(FORMAT_BF16), *inputs = linear_inputs_name(LINEAR_EXACT);
    int rc = json_get_string(json, "format", false, &format, err);
    if (!rc) rc = json_get_string(json, "activations", false, &inputs, err);
    if (rc) return rc;
    reads->format = tensor_format_named(format);
    if (reads->format == FORMAT_COUNT)
        return helm_fail(err, HELM_E_FORMAT, "'format' is '%.40s', no format of weights", format);
    reads->inputs = LINEAR_EXACT;
    while (reads->inputs < LINEAR_INPUTS && strcmp(inputs, linear_inputs_name(reads->inputs)) != 0)
        reads->inputs++;
    return reads->inputs < LINEAR_INPUTS
               ? 0
               : helm_fail(err, HELM_E_FORMAT, "'activations' is '%.40s', not exact or int8", inputs);
}

int profile_now_from_json(const json_t *json, struct profile_now *now, struct helm_err *err)
{
    uint64_t version = 0, busy = 0;
    *now = (struct profile_now){0};
    if (!json_is_object(json)) return helm_fail(err, HELM_E_FORMAT, "rates of now: not an object");
    int rc = json_get_u64(json, "helm_now", true, 1, 1, &version, err);
    for (size_t i = 0; i < MEMBERS && !rc; i++)
        rc = json_get_double(json, members[i].name, i == 0, 1, RATE_MAX, member(now, i), err);
    if (!rc) rc = reads_from_json(json, &now->reads, err);
    if (!rc) rc = json_get_u64(json, "busy_percent", false, 0, PERCENT, &busy, err);
    now->busy_percent = (uint32_t)busy;
    if (rc) *now = (struct profile_now){0};
    return rc ? helm_err_prefix(err, "rates of now") : 0;
}

int profile_now_read(const char *path, struct profile_now *now, struct helm_err *err)
{
    json_t *json = NULL;
    *now = (struct profile_now){0};
    int rc = json_read_file(path, PROFILE_SMALL_BYTES_MAX, &json, err);
    if (!rc) rc = profile_now_from_json(json, now, err);
    json_decref(json);
    return rc ? helm_err_prefix(err, "%s", path) : 0;
}

/* ---- what moves ---- */

/* A rate of memory then and now; without both of them nothing changes. */
struct moved {
    double then, now;
};

static double part_of(const struct moved *m)
{
    return m->then > 0 && m->now > 0 ? m->now / m->then : 1;
}

static void multiply(struct profile_value *v, double by)
{
    v->value *= by, v->low *= by, v->high *= by;
}

/* A rate of the CPU, of which a unit is so many bytes of memory: a byte takes as long as then beside its
 * reading. */
static void move_rate(struct profile_value *v, double bytes, const struct moved *m)
{
    const double rate = v->value * bytes;
    if (rate <= 0 || m->then <= 0 || m->now <= 0) return;
    const double beside = fmax(0, 1 / rate - 1 / m->then);
    const double then = 1 / rate - beside; /* of the reading; less than 1 / m->then where caches helped */
    multiply(v, 1 / rate / (beside + then * m->then / m->now));
}

/* Operations a second by tokens; a weight is `bytes` of memory. */
static void move_table(struct profile_table *table, double bytes, const struct moved *m)
{
    for (uint32_t i = 0; i < table->count; i++)
        move_rate(&table->point[i].y, bytes / (2.0 * table->point[i].x), m);
}

static void move_cpu(struct profile_cpu *cpu, const struct moved *alone, const struct moved *beside)
{
    for (uint32_t i = 0; i < cpu->read.count; i++) move_rate(&cpu->read.point[i].y, 1, alone);
    move_rate(&cpu->gemv, 1, alone);
    move_rate(&cpu->gemv_beside, 1, beside);
    move_rate(&cpu->gemv_packed, PROFILE_PACKED_PART, alone);
    move_rate(&cpu->gemv_packed_beside, PROFILE_PACKED_PART, beside);
    move_rate(&cpu->attention, 1, alone);
    move_rate(&cpu->attention_host, 1, alone);
    move_table(&cpu->linear, 2, alone);
    if (cpu->read_beside.value > 0) multiply(&cpu->read_beside, part_of(beside));
}

static void move_format(struct profile_format *f, double bytes, const struct moved *alone,
                        const struct moved *beside)
{
    move_rate(&f->cpu_gemv, 1, alone);
    move_rate(&f->cpu_int8_gemv, 1, alone);
    move_rate(&f->cpu_gemv_beside, 1, beside);
    move_rate(&f->cpu_int8_gemv_beside, 1, beside);
    move_table(&f->cpu_linear, bytes, alone);
    move_table(&f->cpu_int8_linear, bytes, alone);
}

/* The rates then and now, and where one is not known the pair's from the rate alone. */
struct moves {
    struct moved read, read_beside, h2d, h2d_beside;
};

static struct moves moves_of(const struct profile *p, const struct profile_now *now)
{
    const struct then then = then_of(p, &now->reads);
    struct moves m = {.read = {then.read, now->read},
                      .read_beside = {then.read_beside, now->read_beside},
                      .h2d = {p->link.h2d.value, now->h2d},
                      .h2d_beside = {then.h2d_beside, now->h2d_beside}};
    if (m.read_beside.then <= 0 || m.read_beside.now <= 0)
        m.read_beside = (struct moved){p->cpu.gemv_beside.value, p->cpu.gemv_beside.value * part_of(&m.read)};
    if (m.h2d_beside.then <= 0 || m.h2d_beside.now <= 0) m.h2d_beside = m.h2d;
    return m;
}

void profile_now_apply(const struct profile *profile, const struct profile_now *now, struct profile *out)
{
    const struct moves m = moves_of(profile, now);
    const double link = part_of(&m.h2d), pair = part_of(&m.h2d_beside);
    *out = *profile;
    out->programs_then = m.read.then, out->programs_now = m.read.now;
    move_cpu(&out->cpu, &m.read, &m.read_beside);
    for (int f = 0; f < FORMAT_COUNT; f++) {
        struct profile_format *format = &out->format[f];
        if (!profile_format_has_rates((enum tensor_format)f)) continue;
        const struct tensor_format_traits *t = tensor_format_of((enum tensor_format)f);
        move_format(format, (double)t->block_bytes / t->block_values, &m.read, &m.read_beside);
    }
    for (int d = 0; d < KV_DTYPE_COUNT; d++) {
        move_rate(&out->kv[d].cpu_attention, 1, &m.read);
        move_rate(&out->kv[d].cpu_attention_host, 1, &m.read);
        multiply(&out->kv[d].gpu_attention_direct, link);
    }
    multiply(&out->gpu.attention_direct, link);
    multiply(&out->link.h2d, link);
    multiply(&out->link.h2d_beside, pair);
    multiply(&out->link.h2d_beside_read, pair);
    multiply(&out->link.h2d_beside_packed, pair);
    multiply(&out->link.direct, pair);
}

double profile_now_apart(const struct profile *profile, const struct profile_now *now)
{
    const struct moves m = moves_of(profile, now);
    double apart = fabs(part_of(&m.read) - 1);
    apart = fmax(apart, fabs(part_of(&m.read_beside) - 1));
    apart = fmax(apart, fabs(part_of(&m.h2d) - 1));
    return fmax(apart, fabs(part_of(&m.h2d_beside) - 1));
}

/* ", beside copies 101 (118)": appended where both are known. */
static void add_rate(char text[PROFILE_NOW_TEXT], const char *what, const struct moved *m)
{
    const size_t used = strlen(text);
    if (m->then > 0 && m->now > 0)
        snprintf(text + used, PROFILE_NOW_TEXT - used, ", %s %.4g (%.4g)", what, m->now / GIGA,
                 m->then / GIGA);
}

void profile_now_decide(const struct profile *profile, const struct profile_now *now, struct machine_now *out)
{
    const struct then then = then_of(profile, &now->reads);
    const bool busy = now->busy_percent >= PROFILE_BUSY;
    *out = (struct machine_now){.known = true,
                                .plans = !busy && profile_now_apart(profile, now) > WORTH_MUCH,
                                .rates = *now};
    if (is_plain(&now->reads))
        snprintf(out->text, sizeof out->text, "host memory reads");
    else
        snprintf(out->text, sizeof out->text, "one token of %s with %s activations reads host memory at",
                 tensor_format_name(now->reads.format), linear_inputs_name(now->reads.inputs));
    const size_t named = strlen(out->text);
    snprintf(out->text + named, sizeof out->text - named, " %.4g GB/s now, %.4g in the profile",
             now->read / GIGA, then.read / GIGA);
    add_rate(out->text, "beside copies", &(struct moved){then.read_beside, now->read_beside});
    add_rate(out->text, "copies to the device", &(struct moved){profile->link.h2d.value, now->h2d});
    add_rate(out->text, "beside reads", &(struct moved){then.h2d_beside, now->h2d_beside});
    size_t used = strlen(out->text);
    used += (size_t)snprintf(out->text + used, sizeof out->text - used, ": the forecast goes by that, %s",
                             out->plans ? "and so does the plan" : "the plan by the profile");
    if (busy && used < sizeof out->text)
        snprintf(out->text + used, sizeof out->text - used,
                 " (others took %u %% of the processors' time meanwhile)", now->busy_percent);
}

void profile_now_unknown(struct machine_now *out, const char *why)
{
    *out = (struct machine_now){.known = false};
    snprintf(out->text, sizeof out->text, "host memory now: %s; the forecast goes by the profile", why);
}
