/* Any bytes as a chat template, with a conversation for it: refused with an error, or a text within the
 * limits, the same one each time. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "client/text/jinja/jinja.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char variables[] = "{\"messages\": [{\"role\": \"system\", \"content\": \" S\\u00e9 \"}, "
                                "{\"role\": \"user\", \"content\": \"a,b\"}, "
                                "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": "
                                "\"123456789\", \"function\": {\"name\": \"f\", "
                                "\"arguments\": {\"x\": [1, 2.5, true]}}}]}, {\"role\": \"tool\", "
                                "\"content\": \"\\ud83d\\ude00\"}], \"tools\": "
                                "[{\"function\": {\"name\": \"f\"}}], \"add_generation_prompt\": true, "
                                "\"bos_token\": \"<s>\", \"n\": -3, \"x\": "
                                "[[], {}, \"\", 0]}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct helm_err err = {0};
    struct jinja_template *template;
    int rc = jinja_parse((const char *)data, size, &template, &err);
    if (rc) {
        if (err.code != rc || rc == HELM_E_INTERNAL || err.text[0] == '\0') abort();
        return 0;
    }
    json_t *json = json_loadb(variables, sizeof variables - 1, 0, NULL);
    if (!json) abort();
    /* small enough that a case takes milliseconds */
    struct jinja_input input = {.variables = json,
                                .now_s = 1753500000,
                                .steps_max = 20000,
                                .output_bytes_max = 1u << 20,
                                .memory_bytes_max = 16u << 20};
    char *text[2];
    size_t length[2];
    for (int i = 0; i < 2; i++) {
        rc = jinja_render(template, &input, &text[i], &length[i], &err);
        if (rc == HELM_E_INTERNAL || (rc && text[i])) abort();
        if (!rc && (length[i] > input.output_bytes_max || text[i][length[i]] != '\0')) abort();
    }
    if (!rc && (length[0] != length[1] || memcmp(text[0], text[1], length[0]) != 0)) abort();
    free(text[0]);
    free(text[1]);
    json_decref(json);
    jinja_free(template);
    return 0;
}
