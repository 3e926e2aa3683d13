/* The hub's cache of models as Hugging Face's own programs lay it out, and what --model means: a path, or a
 * name in there.
 *
 *   models--ORG--NAME/refs/main              commit
 *   models--ORG--NAME/snapshots/COMMIT/FILE  -> ../../blobs/ID
 *   models--ORG--NAME/blobs/ID               contents
 *
 * Called by readers of models and by helm-cli, whose `pull` writes it (client/hub). No state. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/err.h"

#define HUB_REPO_MAX   200 /* bytes with the terminating 0: the hub allows 96 characters in either part */
#define HUB_FILE_MAX   512
#define HUB_COMMIT_MAX 41
#define HUB_TAG_MAX    97

/* "ORG/NAME", "ORG/NAME/FILE", FILE possibly in folders, or "ORG/NAME:TAG"; "hf.co/" may come first. */
struct hub_name {
    char repo[HUB_REPO_MAX];
    char file[HUB_FILE_MAX]; /* "" where none is named */
    char tag[HUB_TAG_MAX];   /* likewise */
};
/* HELM_E_USAGE: it is no such name. An accepted name cannot leave the cache's folder. */
HELM_MUST_CHECK int hub_name_parse(const char *given, struct hub_name *name, struct helm_err *err);
/* A file's path inside a repository: no part of it is empty, hidden by dots, or holds what folders or
 * terminals obey. */
bool hub_file_is_safe(const char *file);
/* 40 digits of a commit. */
bool hub_commit_is_valid(const char *commit);

/* $HF_HUB_CACHE, $HUGGINGFACE_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or
 * ~/.cache/huggingface/hub. */
HELM_MUST_CHECK int hub_cache_folder(char folder[PATH_MAX], struct helm_err *err);
/* The repository's folder in there, whether or not it exists. */
HELM_MUST_CHECK int hub_repo_folder(const struct hub_name *name, char folder[PATH_MAX], struct helm_err *err);

/* Tags (hub_tag.c). Letters, digits, '-', '_' and '.'. */
bool hub_tag_is_valid(const char *tag);
/* A GGUF model on its own: no projector, and the first part of a split file. */
bool hub_file_is_gguf(const char *file);
/* Such files of one repository, by their paths in it. */
struct hub_files {
    const char **name;
    size_t count;
};
/* The file that name->tag means: the quantisation in a file's or a folder's name (Q4_K_M, UD-Q4_K_XL), or
 * another part of it, in either case of letters. HELM_E_USAGE: it means several. HELM_E_NOT_FOUND: none. The
 * error names the tags. */
HELM_MUST_CHECK int hub_tag_find(const struct hub_files *files, const struct hub_name *name, size_t *which,
                                 struct helm_err *err);
/* A short tag that means this file alone; "": none does. */
void hub_tag_of(const struct hub_files *files, size_t which, char tag[HUB_TAG_MAX]);

/* The path that --model means, malloc'd: a path that exists; for a repository's folder in the cache its
 * snapshot; for a name that is in the cache its snapshot, the file in it, or a snapshot's only GGUF file if
 * that is in a folder; otherwise the text itself, for its reader to refuse. HELM_E_NOT_FOUND: a name that is
 * not in the cache; the error names the command that downloads it. */
HELM_MUST_CHECK int hub_locate(const char *text, char **path, struct helm_err *err);
