/* What this processor and its operating system can do.
 *
 * The compilers' own __builtin_cpu_supports is not used: some C compilers answer no to every question.
 */
#ifndef OUTRIDER_PROCESSOR_H
#define OUTRIDER_PROCESSOR_H

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>

enum processor_register { CPUID_EAX, CPUID_EBX, CPUID_ECX, CPUID_EDX };

/* A bit of cpuid's answer to ``leaf`` and ``subleaf``; 0 if the processor does not know the leaf. */
static inline int cpuid_subleaf_bit(unsigned leaf, unsigned subleaf, enum processor_register which, int bit) {
    unsigned answer[4];
    if (!__get_cpuid_count(leaf, subleaf, &answer[0], &answer[1], &answer[2], &answer[3])) return 0;
    return (answer[which] >> bit) & 1;
}
static inline int cpuid_bit(unsigned leaf, enum processor_register which, int bit) {
    return cpuid_subleaf_bit(leaf, 0, which, bit);
}

/* Whether the operating system keeps all registers of ``mask`` (XCR0) when it switches threads. */
static inline int system_keeps(uint64_t mask) {
    if (!cpuid_bit(1, CPUID_ECX, 27)) return 0; /* OSXSAVE */
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (((uint64_t)high << 32 | low) & mask) == mask;
}

static inline int has_avx2(void) {
    return system_keeps(0x6) && cpuid_bit(7, CPUID_EBX, 5) && cpuid_bit(1, CPUID_ECX, 12) /* FMA */ &&
           cpuid_bit(1, CPUID_ECX, 29); /* F16C */
}

static inline int has_avxvnni(void) { return has_avx2() && cpuid_subleaf_bit(7, 1, CPUID_EAX, 4); }

/* With BW, DQ, VL and VNNI. */
static inline int has_avx512(void) {
    return has_avx2() && system_keeps(0xe6) && cpuid_bit(7, CPUID_EBX, 16) && cpuid_bit(7, CPUID_EBX, 17) &&
           cpuid_bit(7, CPUID_EBX, 30) && cpuid_bit(7, CPUID_EBX, 31) && cpuid_bit(7, CPUID_ECX, 11);
}

/* Tiles of int8; programs must still ask the system for them. */
static inline int has_amx(void) {
    return has_avx512() && system_keeps(0x60000) && cpuid_bit(7, CPUID_EDX, 24) && cpuid_bit(7, CPUID_EDX, 25);
}
#endif

#if defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
/* HWCAP_ASIMDDP of the kernel. */
static inline int has_dot_products(void) { return (getauxval(AT_HWCAP) >> 20) & 1; }
/* HWCAP2_I8MM. */
static inline int has_i8mm(void) { return has_dot_products() && ((getauxval(AT_HWCAP2) >> 13) & 1); }
#elif defined(__APPLE__)
#include <stddef.h>
#include <sys/sysctl.h>
/* All of Apple's processors of this architecture have them. */
static inline int has_dot_products(void) { return 1; }
/* From M2 on. A system that does not know the question has no such processor. */
static inline int has_i8mm(void) {
    int has = 0;
    size_t size = sizeof has;
    return !sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, NULL, 0) && has;
}
#else
static inline int has_dot_products(void) { return 0; }
static inline int has_i8mm(void) { return 0; }
#endif
#endif

#endif
