/* Which device a test runs on: HELM_TEST_DEVICE, by default the emulated one. For tests that also run on a
 * GPU (make check-gpu); owns nothing. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "worker-gpu/device/device.h"

static inline const char *device_name(void)
{
    const char *name = getenv("HELM_TEST_DEVICE");
    return name && *name ? name : "emulated";
}

/* Skips, and says why, when the device asked for is not there. */
static inline void need_device(void)
{
    char why[256];
    if (strcmp(device_name(), "emulated") == 0 || device_cuda_usable(why, sizeof why)) return;
    print_message("skipped: %s\n", why);
    skip();
}

/* Whether cases that are alike run, too. The emulated device has the same code for all models and for plans
 * of the same kind: of those `make test` runs some there, `make test-full` all. */
static inline bool every_case(void)
{
    return getenv("HELM_TEST_FULL") || strcmp(device_name(), "emulated") != 0;
}
