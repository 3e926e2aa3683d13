/* What a tool does when it is interrupted: nothing of what it had not finished stays.
 *
 * Called by helm-mkmodel and helm-quantize, which stop by themselves and clean up (interrupt_note), and by helm-profile,
 * whose measurements cannot be stopped from inside (interrupt_end_process). Owns the handlers of SIGINT, SIGTERM, SIGHUP and
 * SIGPIPE, and the names that they need. */
#pragma once

#include <stdbool.h>

#define INTERRUPT_FILES 2

/* From here on these signals end nothing: interrupt_noted says that one came. */
void interrupt_note(void);
bool interrupt_noted(void);
/* The exit status of main: ends the process by the signal that came, so that its parent sees which. */
int interrupt_end(int status);

/* From here on these signals remove what interrupt_remove named, and end the process. */
void interrupt_end_process(void);
/* Between these two, by one thread, they wait: while files are made, removed, or written under a name of their own. */
void interrupt_hold(void);
void interrupt_release(void);
/* While held: these files, then the empty folder, are what is removed from now on. Copied; NULL: nothing any more. */
void interrupt_remove(const char *const files[INTERRUPT_FILES], const char *folder);
