/* What a tool does when it is interrupted: nothing of what it had not finished stays.
 *
 * Called by helm-mkmodel and helm-quantize, which stop by themselves and clean up (interrupt_note), and by helm-profile,
 * whose measurements cannot be stopped from inside (interrupt_remove). Owns the handlers of SIGINT, SIGTERM, SIGHUP and
 * SIGPIPE, and the names that they need. */
#ifndef HELM_TOOLS_INTERRUPT_INTERRUPT_H
#define HELM_TOOLS_INTERRUPT_INTERRUPT_H

#include <limits.h>
#include <stdbool.h>

#define INTERRUPT_PATHS 3

/* From here on these signals end nothing: interrupt_noted says that one came. */
void interrupt_note(void);
bool interrupt_noted(void);
/* The exit status of main: ends the process by the signal that came, so that its parent sees which. */
int interrupt_end(int status);

/* From here on these signals remove these files, then an empty folder (each may be NULL), and end the process. Copied. */
void interrupt_remove(const char *const files[INTERRUPT_PATHS - 1], const char *folder);
/* They only end it again. */
void interrupt_keep(void);
/* Holds them back while a file is written under a name of its own; interrupt_release lets them act. */
void interrupt_hold(void);
void interrupt_release(void);

#endif
