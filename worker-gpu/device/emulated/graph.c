/* The emulated device's events and graphs. See emulated/queue.h; their rules stand in device.h.
 *
 * A graph is a list of operations for each queue. A launch puts one operation into each queue, at once, so
 * that both count the launches alike; inside, the parts find each other by marks that recording left. */
#include "worker-gpu/device/emulated/queue.h"

#include <stdlib.h>
#include <string.h>

/* ---- recording ---- */

static int grow(void **list, uint32_t *capacity, uint32_t count, uint32_t first, size_t each,
                struct helm_err *err)
{
    if (count < *capacity) return 0;
    uint32_t wanted = *capacity ? *capacity * 2 : first;
    void *grown = aligned_alloc(16, (wanted * each + 15) / 16 * 16);
    if (!grown) return helm_fail(err, HELM_E_NOMEM, "no memory for a graph of %u operations", wanted);
    if (count) memcpy(grown, *list, count * each);
    free(*list);
    *list = grown;
    *capacity = wanted;
    return 0;
}

int emulated_graph_add(struct device_graph *graph, enum device_queue queue, const struct task *op,
                       struct helm_err *err)
{
    struct graph_part *part = &graph->part[queue];
    int rc = grow((void **)&part->op, &part->capacity, part->count, 64, sizeof *part->op, err);
    if (!rc) part->op[part->count++] = *op;
    return rc;
}

static int list_crossing(struct crossing_list *list, struct device_event *event, enum device_queue queue,
                         uint32_t mark, struct helm_err *err)
{
    int rc = grow((void **)&list->use, &list->capacity, list->count, 16, sizeof *list->use, err);
    if (!rc) list->use[list->count++] = (struct crossing_use){.event = event, .queue = queue, .mark = mark};
    return rc;
}

static bool is_listed(const struct crossing_list *list, const struct device_event *event)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->use[i].event == event) return true;
    return false;
}

static int both_in_one(struct helm_err *err)
{
    return helm_fail(err, HELM_E_STATE, "a crossing event is recorded and followed in one capture");
}

static int record_captured(struct device_graph *graph, enum device_queue queue, struct device_event *event,
                           struct helm_err *err)
{
    const struct task op = {.kind = TASK_MARK, .as.mark.number = graph->part[queue].marks + 1};
    if (event->crossing && is_listed(&graph->followed, event)) return both_in_one(err);
    int rc = emulated_graph_add(graph, queue, &op, err);
    if (!rc && event->crossing) rc = list_crossing(&graph->recorded, event, queue, op.as.mark.number, err);
    if (rc) return rc;
    graph->part[queue].marks++;
    if (event->crossing) return 0;
    event->captured = graph->serial;
    event->at = (struct point){.queue = queue, .marks = op.as.mark.number};
    return 0;
}

static int follow_captured(struct device_graph *graph, enum device_queue queue, struct device_event *event,
                           struct helm_err *err)
{
    struct task op = {.kind = TASK_FOLLOW_OWN, .as.follow = event->at};
    int rc = 0;
    if (event->crossing && is_listed(&graph->recorded, event)) return both_in_one(err);
    if (event->crossing) {
        op = (struct task){.kind = TASK_FOLLOW_CROSS, .as.cross.slot = graph->followed.count};
        rc = list_crossing(&graph->followed, event, queue, 0, err);
    } else if (event->captured != graph->serial) {
        rc = helm_fail(err, HELM_E_STATE, "a plain event of outside is followed inside a capture");
    }
    return rc ? rc : emulated_graph_add(graph, queue, &op, err);
}

/* ---- events ---- */

/* The host's wait for any of them sleeps. */
int emulated_event_create(struct device *d, enum device_event_kind kind, struct device_event **event,
                          struct helm_err *err)
{
    (void)d;
    *event = calloc(1, sizeof **event);
    if (!*event) return helm_fail(err, HELM_E_NOMEM, "no memory for an event");
    (*event)->crossing = kind == DEVICE_EVENT_CROSSING;
    return 0;
}

void emulated_event_free(struct device *d, struct device_event *event)
{
    (void)d;
    free(event);
}

int emulated_event_record(struct device *d, enum device_queue queue, struct device_event *event,
                          struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    if (e->capture) return record_captured(e->capture, queue, event, err);
    int rc = emulated_check(d, err);
    if (rc) return rc;
    pthread_mutex_lock(&e->lock);
    event->captured = 0;
    event->at = (struct point){.queue = queue, .op = e->queue[queue].put};
    pthread_mutex_unlock(&e->lock);
    return 0;
}

static int outside(const struct device_event *event, struct helm_err *err)
{
    if (!event->captured) return 0;
    return helm_fail(err, HELM_E_STATE, "an event that was recorded in a capture is used outside of it");
}

int emulated_event_follow(struct device *d, enum device_queue queue, struct device_event *event,
                          struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    if (e->capture) return follow_captured(e->capture, queue, event, err);
    int rc = outside(event, err);
    if (rc) return rc;
    const struct task op = {.kind = TASK_FOLLOW, .as.follow = event->at};
    return emulated_put(e, queue, &op, err);
}

int emulated_event_wait(struct device *d, struct device_event *event, struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    int rc = outside(event, err);
    if (rc) return rc;
    pthread_mutex_lock(&e->lock);
    emulated_wait_locked(e, &event->at, true);
    pthread_mutex_unlock(&e->lock);
    return emulated_check(d, err);
}

/* ---- captures ---- */

static uint64_t graph_bytes(const struct device_graph *graph)
{
    uint64_t bytes = 0;
    for (int q = 0; q < DEVICE_QUEUE_COUNT; q++) bytes += graph->part[q].capacity * sizeof(struct task);
    return bytes;
}

static void destroy(struct device_graph *graph)
{
    for (int q = 0; q < DEVICE_QUEUE_COUNT; q++) free(graph->part[q].op);
    free(graph->recorded.use);
    free(graph->followed.use);
    free(graph);
}

/* The host may release the graph as soon as it sees a word that the graph writes, while parts of it are still
 * queued. */
void emulated_graph_release_locked(struct device_graph *graph)
{
    if (--graph->users == 0) destroy(graph);
}

void emulated_capture_drop(struct emulated *e)
{
    if (e->capture) destroy(e->capture);
    e->capture = NULL;
}

int emulated_capture_begin(struct device *d, struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    if (e->capture) return helm_fail(err, HELM_E_STATE, "a graph is being captured already");
    e->capture = calloc(1, sizeof *e->capture);
    if (!e->capture) return helm_fail(err, HELM_E_NOMEM, "no memory for a graph");
    e->capture->serial = ++e->captures;
    e->capture->users = 1;
    return 0;
}

int emulated_capture_end(struct device *d, struct device_graph **graph, struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    *graph = NULL;
    if (!e->capture) return helm_fail(err, HELM_E_STATE, "no graph is being captured");
    int rc = device_charge(d, DEVICE_GRAPHS, graph_bytes(e->capture), err);
    if (rc) {
        emulated_capture_drop(e);
        return rc;
    }
    *graph = e->capture;
    e->capture = NULL;
    return 0;
}

void emulated_graph_free(struct device *d, struct device_graph *graph)
{
    struct emulated *e = emulated_of(d);
    if (!graph) return;
    d->used[DEVICE_GRAPHS] -= graph_bytes(graph);
    pthread_mutex_lock(&e->lock);
    emulated_graph_release_locked(graph);
    pthread_mutex_unlock(&e->lock);
}

/* ---- launches ---- */

/* Where the events that this part follows were recorded last: by now, since they may be recorded anew before
 * the part has come so far. NULL without any. */
static int note_crossings_locked(const struct device_graph *graph, struct point **points,
                                 struct helm_err *err)
{
    const struct crossing_list *list = &graph->followed;
    *points = NULL;
    if (!list->count) return 0;
    *points = malloc(list->count * sizeof **points);
    if (!*points) return helm_fail(err, HELM_E_NOMEM, "no memory for %u events", list->count);
    for (uint32_t i = 0; i < list->count; i++) (*points)[i] = list->use[i].event->at;
    return 0;
}

static void put_parts_locked(struct emulated *e, struct device_graph *graph,
                             struct point *cross[DEVICE_QUEUE_COUNT], bool alone)
{
    struct task follow[DEVICE_QUEUE_COUNT] = {0}, launch = {.kind = TASK_GRAPH, .as.graph.graph = graph};
    bool has[DEVICE_QUEUE_COUNT];
    for (int q = 0; q < DEVICE_QUEUE_COUNT; q++) {
        const struct queue *other = &e->queue[!q];
        follow[q].kind = TASK_FOLLOW;
        follow[q].as.follow = (struct point){.queue = (enum device_queue) !q, .op = other->put};
        has[q] = graph->part[q].count > 0;
    }
    for (int q = 0; q < DEVICE_QUEUE_COUNT; q++) {
        if (alone) emulated_put_locked(e, (enum device_queue)q, &follow[q]);
        launch.as.graph.op[q] = e->queue[q].put + has[q];
    }
    for (int q = 0; q < DEVICE_QUEUE_COUNT; q++) {
        launch.as.graph.cross = cross[q];
        if (has[q]) emulated_put_locked(e, (enum device_queue)q, &launch);
        graph->users += has[q];
    }
    for (int q = 0; q < DEVICE_QUEUE_COUNT && alone; q++) {
        follow[q].as.follow.op = launch.as.graph.op[!q];
        emulated_put_locked(e, (enum device_queue)q, &follow[q]);
    }
    for (uint32_t i = 0; i < graph->recorded.count; i++) {
        const struct crossing_use *use = &graph->recorded.use[i];
        use->event->at =
            (struct point){.queue = use->queue, .op = launch.as.graph.op[use->queue], .marks = use->mark};
    }
    for (int q = 0; q < DEVICE_QUEUE_COUNT; q++)
        for (int i = 0; i < DEVICE_DIRECTION_COUNT; i++)
            atomic_fetch_add_explicit(&e->base.copied_bytes[q][i], graph->copied_bytes[q][i],
                                      memory_order_relaxed);
}

int emulated_graph_launch(struct device *d, struct device_graph *graph, bool alone, struct helm_err *err)
{
    struct emulated *e = emulated_of(d);
    struct point *cross[DEVICE_QUEUE_COUNT] = {NULL, NULL};
    if (e->capture) return helm_fail(err, HELM_E_STATE, "a graph is launched inside a capture");
    int rc = emulated_check(&e->base, err);
    if (rc) return rc;
    pthread_mutex_lock(&e->lock);
    /* Room in both before anything is put. Waiting lets the lock go, but only this thread puts into the
     * first, and the second is looked at last. */
    emulated_room_locked(e, DEVICE_COMPUTE, 3);
    emulated_room_locked(e, DEVICE_COPY, 3);
    for (int q = 0; q < DEVICE_QUEUE_COUNT && !rc; q++)
        if (graph->part[q].count) rc = note_crossings_locked(graph, &cross[q], err);
    if (!rc)
        put_parts_locked(e, graph, cross, alone);
    else
        for (int q = 0; q < DEVICE_QUEUE_COUNT; q++) free(cross[q]);
    pthread_mutex_unlock(&e->lock);
    return rc;
}
