/* Tags: which GGUF file of a repository ORG/NAME:TAG means. See hub.h.
 *
 * Called by hub.c, which looks in the cache, and by client/hub/choose.c, which looks in the hub's list. No
 * state. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/base/suggest.h"
#include "common/model/checkpoint.h"
#include "common/model/hub.h"

#define TAGS_NAMED 64   /* in one error */
#define FILES_MAX  1000 /* of which short tags are looked for */
#define TRIES_MAX  8
#define NO_FIT     4u

static bool ends_with_gguf(const char *file)
{
    const size_t length = strlen(file);
    return length > 5 && strcmp(file + length - 5, ".gguf") == 0;
}

static const char *base_of(const char *file)
{
    const char *slash = strrchr(file, '/');
    return slash ? slash + 1 : file;
}

bool hub_file_is_gguf(const char *file)
{
    uint32_t number = 1, count = 1;
    return ends_with_gguf(file) && strncasecmp(base_of(file), "mmproj", 6) != 0 &&
           (!gguf_is_part(file, &number, &count) || number == 1);
}

/* The path without ".gguf" and without a part's number. */
static size_t stem_length(const char *file)
{
    uint32_t number, count;
    return strlen(file) - (gguf_is_part(file, &number, &count) ? sizeof GGUF_PART_SUFFIX - 1 : 5);
}

/* Q4_K_M, but not K_M: an underscore may stand before the first and not before the second. */
static bool names_quantisation(const char *tag)
{
    return (*tag < '0' || *tag > '9') && strcspn(tag, "0123456789") < strcspn(tag, "_");
}

/* How far a tag is from naming a file; NO_FIT: it does not. It is a part of the path between separators. The
 * end of a name or of a folder's name is better than its middle, and Q4_K_XL is rather x-Q4_K_XL than
 * x-UD-Q4_K_XL. */
static unsigned fit(const char *file, const char *tag)
{
    const size_t length = stem_length(file), n = strlen(tag);
    unsigned best = NO_FIT;
    for (size_t at = 0; n && at + n <= length; at++) {
        const char before = at ? file[at - 1] : '/', after = at + n < length ? file[at + n] : '/';
        if (strncasecmp(file + at, tag, n) != 0 || !strchr("-./", after)) continue;
        if (!strchr("-./", before) && !(before == '_' && names_quantisation(tag))) continue;
        const bool dynamic = at >= 3 && strncasecmp(file + at - 3, "UD-", 3) == 0;
        const unsigned here = (after != '/') + 2u * dynamic;
        if (here < best) best = here;
    }
    return best;
}

/* The number of files that a tag fits best, and the first of them. */
static size_t count_best(const struct hub_files *files, const char *tag, size_t *first, unsigned *how)
{
    size_t count = 0;
    *how = NO_FIT;
    for (size_t i = 0; i < files->count; i++) {
        const unsigned here = fit(files->name[i], tag);
        if (here > *how || here == NO_FIT) continue;
        if (here < *how) *first = i, count = 0;
        *how = here;
        count++;
    }
    return count;
}

/* Copies bytes of a path as a tag; whether it means this file alone. */
static bool try_tag(const struct hub_files *files, size_t which, const char *from, size_t n,
                    char tag[HUB_TAG_MAX])
{
    size_t first = files->count;
    unsigned how;
    if (n == 0 || n >= HUB_TAG_MAX) return false;
    memcpy(tag, from, n);
    tag[n] = '\0';
    return hub_tag_is_valid(tag) && count_best(files, tag, &first, &how) == 1 && first == which;
}

void hub_tag_of(const struct hub_files *files, size_t which, char tag[HUB_TAG_MAX])
{
    const char *file = files->name[which], *base = base_of(file), *end = file + stem_length(file);
    int tries = files->count > FILES_MAX ? TRIES_MAX : 0;
    for (const char *at = end; at-- > base && tries < TRIES_MAX;) {
        if (at > base && !strchr("-.", at[-1])) continue;
        if (try_tag(files, which, at, (size_t)(end - at), tag)) return;
        tries++;
    }
    const char *folder = base > file ? base - 1 : file;
    while (folder > file && folder[-1] != '/') folder--;
    if (base > file && files->count <= FILES_MAX &&
        try_tag(files, which, folder, (size_t)(base - 1 - folder), tag))
        return;
    *tag = '\0';
}

static void raise(const char *text, char out[HUB_TAG_MAX])
{
    size_t n = 0;
    for (; text[n] && n + 1 < HUB_TAG_MAX; n++)
        out[n] = (char)(text[n] >= 'a' && text[n] <= 'z' ? text[n] - 'a' + 'A' : text[n]);
    out[n] = '\0';
}

/* "Q4_K_M, Q8_0", each as a tag or, where it has none, as a path: of the files that fit so; and the tag that
 * is nearest. */
static void name_tags(const struct hub_files *files, const struct hub_name *name, unsigned how, char *text,
                      size_t size, char near[HUB_TAG_MAX])
{
    char wanted[HUB_TAG_MAX], shown[HUB_TAG_MAX], tags[TAGS_NAMED][HUB_TAG_MAX];
    struct suggest nearest;
    size_t used = 0;
    raise(name->tag, wanted);
    suggest_begin(&nearest, wanted, strlen(wanted));
    *text = '\0';
    for (size_t i = 0, n = 0; i < files->count && n < TAGS_NAMED; i++) {
        if (fit(files->name[i], name->tag) != how) continue;
        hub_tag_of(files, i, shown);
        raise(shown, tags[n]);
        suggest_try(&nearest, tags[n++]);
        if (used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "",
                                     *shown ? shown : files->name[i]);
    }
    if (used >= size) strcpy(text + size - 4, "...");
    snprintf(near, HUB_TAG_MAX, "%s", nearest.best ? nearest.best : "");
}

int hub_tag_find(const struct hub_files *files, const struct hub_name *name, size_t *which,
                 struct helm_err *err)
{
    char text[300], near[HUB_TAG_MAX];
    unsigned how;
    *which = 0;
    const size_t count = count_best(files, name->tag, which, &how);
    if (count == 1) return 0;
    name_tags(files, name, how, text, sizeof text, near);
    if (count)
        return helm_fail(err, HELM_E_USAGE, "%s:%s means %zu GGUF files, name one of %s", name->repo,
                         name->tag, count, text);
    return helm_fail(err, HELM_E_NOT_FOUND, "no GGUF file %s:%s%s%s%s%s", name->repo, name->tag,
                     *near ? ", the nearest is :" : "", near, *text ? "; there are " : "", text);
}
