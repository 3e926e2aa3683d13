/* A tool's end when it is interrupted: nothing of what it had not finished stays.
 *
 * Called by helm-mkmodel and helm-quantize, which stop by themselves and clean up, and by helm-profile while
 * it writes files; otherwise signals end it at once. Owns the handlers of SIGINT, SIGTERM, SIGHUP and
 * SIGPIPE. */
#pragma once

#include <stdbool.h>

/* From here on these signals end nothing: interrupt_noted says that one came. */
void interrupt_note(void);
bool interrupt_noted(void);
/* The exit status of main: ends the process by the signal that came, so that its parent sees which. */
int interrupt_end(int status);
/* From here on they end the process again, and at once if one came. */
void interrupt_release(void);
