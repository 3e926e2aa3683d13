/* The existing name that is nearest to one that is not there: for what is refused. Called by hub.c. No state. */
#ifndef HELM_COMMON_MODEL_NEAREST_H
#define HELM_COMMON_MODEL_NEAREST_H

#include <limits.h>
#include <stdbool.h>

/* In the path's folder: to a GGUF file's name the nearest of the GGUF files there, however far; to another one a near one
 * of folders and GGUF files. false: there is none. */
bool nearest_file(const char *path, char name[NAME_MAX + 1]);
/* A near repository of those in the hub's cache, as ORG/NAME. */
bool nearest_repo(const char *cache, const char *repo, char name[NAME_MAX + 1]);

#endif
