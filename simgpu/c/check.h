/* Checks for the C test programs. A failed check prints its line and expression and ends the program. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                               \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* The call must return this code. */
#define RETURNS(code, call)                                                            \
    do {                                                                               \
        int got_ = (int)(call);                                                        \
        if (got_ != (code)) {                                                          \
            fprintf(stderr, "%s:%d: %s returned %d, not %d\n", __FILE__, __LINE__, #call, got_, (code)); \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

#define OK(call) RETURNS(0, call)

#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* Write and check a test pattern. */
static inline void pattern(unsigned char *to, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++) to[i] = (unsigned char)(i * 31 + seed);
}

static inline int has_pattern(const unsigned char *from, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++)
        if (from[i] != (unsigned char)(i * 31 + seed)) return 0;
    return 1;
}
