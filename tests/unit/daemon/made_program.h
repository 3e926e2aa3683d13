/* A program that a test makes: a shell script in /tmp, which the caller removes. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Its path, until the next one is made. */
static inline const char *made_program(const char *script)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/helm-made-program-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    dprintf(fd, "#!/bin/sh\n%s\n", script);
    fchmod(fd, 0700);
    close(fd);
    return path;
}
