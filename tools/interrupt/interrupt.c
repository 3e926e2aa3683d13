/* SIGINT, SIGTERM, SIGHUP and SIGPIPE in tools. See interrupt.h. */
#include "tools/interrupt/interrupt.h"

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
#define NUMBERS (sizeof numbers / sizeof *numbers)

static volatile sig_atomic_t noted;
static atomic_bool held, ending;
static char file[INTERRUPT_FILES][PATH_MAX], folder[PATH_MAX]; /* "": none */

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

/* unlink and rmdir may be called in a handler. */
static void remove_and_end(int number)
{
    for (size_t i = 0; i < INTERRUPT_FILES; i++)
        if (file[i][0]) unlink(file[i]);
    if (folder[0]) rmdir(folder);
    end_by(number);
}

/* In any thread: that which holds may be another one, so a mask of signals would not do. */
static void act(int number)
{
    atomic_store(&ending, true);
    if (atomic_load(&held)) {
        noted = number;
        atomic_store(&ending, false);
        return;
    }
    remove_and_end(number);
}

void interrupt_end_process(void)
{
    handle(act);
}

void interrupt_hold(void)
{
    atomic_store(&held, true);
    while (atomic_load(&ending)) sched_yield(); /* the end, unless the other side saw that this one holds */
}

void interrupt_release(void)
{
    atomic_store(&held, false);
    if (noted) remove_and_end(noted);
}

void interrupt_remove(const char *const files[INTERRUPT_FILES], const char *where)
{
    for (size_t i = 0; i < INTERRUPT_FILES; i++)
        snprintf(file[i], sizeof file[i], "%s", files && files[i] ? files[i] : "");
    snprintf(folder, sizeof folder, "%s", where ? where : "");
}
