/* The existing name that is nearest to one that is not there: for what is refused. Called by hub.c. No
 * state. */
#pragma once

#include <stdbool.h>

#include "common/base/err.h"

#define NEAREST_TEXT 300

/* Looks in the path's folder: to a GGUF file's name for the nearest of the GGUF files there, however far; to
 * another one for a near one of folders and GGUF files. true: there is one; *err is HELM_E_NOT_FOUND and
 * names it. */
bool nearest_refuse(const char *path, struct helm_err *err);
/* "; the nearest name there is NAME" of what the hub's cache has, or "": a GGUF file beside `file` ("": none
 * is named) where the repository is there, else a repository. */
const char *nearest_cached(const char *repo_folder, const char *file, char text[NEAREST_TEXT]);
