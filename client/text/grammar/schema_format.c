/* The values of `format`, as regular expressions. See schema.h. Each is a part of what its standard allows:
 * dates from 1000 to 2999, times without leap seconds, addresses of the usual characters. */
#include <string.h>

#include "client/text/grammar/schema.h"

#define LEAP "([12][0-9](0[48]|[2468][048]|[13579][26])|(1[26]|2[048])00)"
#define DATE                                                                                                 \
    "([12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|" \
    "1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define HEX   "[0-9a-fA-F]"
#define BYTE  "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P([0-9]{1,9}W|[0-9]{1,9}D(T[0-9]{1,9}S)?|T([0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?|[0-9]{"
                 "1,9}M|[0-9]{1,9}S))$"},
    {"uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$"},
    {"ipv4", "^" BYTE "\\." BYTE "\\." BYTE "\\." BYTE "$"},
    {"hostname", "^" LABEL "(\\." LABEL "){0,3}$"},
    {"email", "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,15}){0,2}@" LABEL "(\\." LABEL "){1,3}$"},
};

const char *schema_format_pattern(const char *name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) return formats[i].pattern;
    return NULL;
}
