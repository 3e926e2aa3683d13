/* SIGINT, SIGTERM, SIGHUP and SIGPIPE in tools. See interrupt.h. */
#include "tools/interrupt/interrupt.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
#define NUMBERS (sizeof numbers / sizeof *numbers)

static volatile sig_atomic_t noted;
static char leftover[INTERRUPT_PATHS][PATH_MAX]; /* files, then the folder; "": none */

static void handle(void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler}, before;
    for (size_t i = 0; i < NUMBERS; i++) sigaddset(&action.sa_mask, numbers[i]);
    for (size_t i = 0; i < NUMBERS; i++) /* what the caller has ignored (nohup) stays ignored */
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
    signal(number, SIG_DFL);
    raise(number);
}

int interrupt_end(int status)
{
    if (noted) end_by(noted);
    return status;
}

/* unlink and rmdir may be called in a handler. */
static void remove_and_end(int number)
{
    for (size_t i = 0; i + 1 < INTERRUPT_PATHS; i++)
        if (leftover[i][0]) unlink(leftover[i]);
    if (leftover[INTERRUPT_PATHS - 1][0]) rmdir(leftover[INTERRUPT_PATHS - 1]);
    end_by(number); /* as soon as the handler has returned */
}

void interrupt_hold(void)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < NUMBERS; i++) sigaddset(&set, numbers[i]);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

void interrupt_release(void)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < NUMBERS; i++) sigaddset(&set, numbers[i]);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

void interrupt_remove(const char *const files[INTERRUPT_PATHS - 1], const char *folder)
{
    interrupt_hold();
    for (size_t i = 0; i + 1 < INTERRUPT_PATHS; i++)
        snprintf(leftover[i], sizeof leftover[i], "%s", files[i] ? files[i] : "");
    snprintf(leftover[INTERRUPT_PATHS - 1], PATH_MAX, "%s", folder ? folder : "");
    handle(remove_and_end);
    interrupt_release();
}

void interrupt_keep(void)
{
    handle(SIG_DFL);
    memset(leftover, 0, sizeof leftover);
}
