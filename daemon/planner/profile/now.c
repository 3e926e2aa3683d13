/* A profile at what the machine's memory gives now. See now.h. */
#include "daemon/planner/profile/now.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/json.h"

#define FILE_BYTES_MAX 4096
#define RATE_MAX       1e18

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

json_t *profile_now_to_json(const struct profile_now *now)
{
    struct profile_now copy = *now;
    json_t *json = json_pack("{s:i}", "helm_now", 1);
    for (size_t i = 0; i < MEMBERS && json; i++)
        if (*member(&copy, i) > 0) json_object_set_new(json, members[i].name, json_real(*member(&copy, i)));
    if (json) json_object_set_new(json, "busy_percent", json_integer(now->busy_percent));
    return json;
}

int profile_now_from_json(const json_t *json, struct profile_now *now, struct helm_err *err)
{
    uint64_t version = 0, busy = 0;
    *now = (struct profile_now){0};
    if (!json_is_object(json)) return helm_fail(err, HELM_E_FORMAT, "rates of now: not an object");
    int rc = json_get_u64(json, "helm_now", true, 1, 1, &version, err);
    for (size_t i = 0; i < MEMBERS && !rc; i++)
        rc = json_get_double(json, members[i].name, i == 0, 1, RATE_MAX, member(now, i), err);
    if (!rc) rc = json_get_u64(json, "busy_percent", false, 0, 100, &busy, err);
    now->busy_percent = (uint32_t)busy;
    if (rc) *now = (struct profile_now){0};
    return rc ? helm_err_prefix(err, "rates of now") : 0;
}

int profile_now_read(const char *path, struct profile_now *now, struct helm_err *err)
{
    json_t *json = NULL;
    *now = (struct profile_now){0};
    int rc = json_read_file(path, FILE_BYTES_MAX, &json, err);
    if (!rc) rc = profile_now_from_json(json, now, err);
    json_decref(json);
    return rc ? helm_err_prefix(err, "%s", path) : 0;
}

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

/* A rate of the CPU, of which a unit is so many bytes of memory: a byte takes as long as then beside its reading. */
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
    move_table(&cpu->linear_packed, 2 * PROFILE_PACKED_PART, alone);
    move_table(&cpu->linear_beside, 2, beside);
    if (cpu->read_beside.value > 0) multiply(&cpu->read_beside, part_of(beside));
}

static void move_format(struct profile_format *f, double bytes, const struct moved *alone,
                        const struct moved *beside)
{
    move_rate(&f->cpu_gemv, 1, alone);
    move_rate(&f->cpu_int8_gemv, 1, alone);
    move_rate(&f->cpu_experts, 1, alone);
    move_rate(&f->cpu_int8_experts, 1, alone);
    move_rate(&f->cpu_gemv_beside, 1, beside);
    move_rate(&f->cpu_int8_gemv_beside, 1, beside);
    move_table(&f->cpu_linear, bytes, alone);
    move_table(&f->cpu_int8_linear, bytes, alone);
}

/* The rates then and now, and where one is not known the pair's from the rate alone. */
struct moves {
    struct moved read, read_beside, h2d, h2d_beside;
};

static double read_of(const struct profile *p)
{
    return profile_table_at(&p->cpu.read, p->cpu.threads).value;
}

static struct moves moves_of(const struct profile *p, const struct profile_now *now)
{
    struct moves m = {.read = {read_of(p), now->read},
                      .read_beside = {p->cpu.read_beside.value, now->read_beside},
                      .h2d = {p->link.h2d.value, now->h2d},
                      .h2d_beside = {p->link.h2d_beside_read.value, now->h2d_beside}};
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
    move_cpu(&out->cpu, &m.read, &m.read_beside);
    for (int f = 0; f < FORMAT_COUNT; f++) {
        struct profile_format *format = &out->format[f];
        if (!profile_format_has_rates((enum tensor_format)f)) continue;
        const struct tensor_format_traits *t = tensor_format_of((enum tensor_format)f);
        move_format(format, (double)t->block_bytes / t->block_values, &m.read, &m.read_beside);
        multiply(&format->link_beside, pair);
        multiply(&format->cpu_int8_link_beside, pair);
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
    multiply(&out->link.h2d_beside_chunk, pair);
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
        snprintf(text + used, PROFILE_NOW_TEXT - used, ", %s %.4g (%.4g)", what, m->now * 1e-9,
                 m->then * 1e-9);
}

void profile_now_decide(const struct profile *profile, const struct profile_now *now, struct machine_now *out)
{
    const double read = read_of(profile);
    const bool busy = now->busy_percent >= PROFILE_BUSY;
    *out = (struct machine_now){.known = true,
                                .plans = !busy && profile_now_apart(profile, now) > PROFILE_NOW_PLAN,
                                .rates = *now};
    snprintf(out->text, sizeof out->text, "host memory reads %.4g GB/s now, %.4g in the profile",
             now->read * 1e-9, read * 1e-9);
    add_rate(out->text, "beside copies", &(struct moved){profile->cpu.read_beside.value, now->read_beside});
    add_rate(out->text, "copies to the device", &(struct moved){profile->link.h2d.value, now->h2d});
    add_rate(out->text, "beside reads",
             &(struct moved){profile->link.h2d_beside_read.value, now->h2d_beside});
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
