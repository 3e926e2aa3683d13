/* SIGINT, SIGTERM, SIGHUP and SIGPIPE in tools. See interrupt.h. */
#include "tools/interrupt/interrupt.h"

#include <signal.h>
#include <stddef.h>

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
#define NUMBERS (sizeof numbers / sizeof *numbers)

static volatile sig_atomic_t noted;

static void handle(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler}, before;
    for (size_t i = 0; i < NUMBERS; i++) sigaddset(&action.sa_mask, numbers[i]);
    for (size_t i = 0; i < NUMBERS; i++) /* signals that the caller ignored (nohup) stay ignored */
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
}

static void note(int number)
{
    noted = number;
}

void interrupt_note(void)
{
    handle(note);
}

bool interrupt_noted(void)
{
    return noted != 0;
}

static void end_by(int number)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, number);
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    raise(number);
}

int interrupt_end(int status)
{
    if (noted) end_by(noted);
    return status;
}

/* In this order a signal is either noted or ends the process by itself. */
void interrupt_release(void)
{
    handle(SIG_DFL);
    (void)interrupt_end(0);
}
