// What AddressSanitizer must be told in its build: which stack is in use, and which shared memory
// belongs to no declaration. In other builds kAsan is false, and nothing here is called.
#pragma once

#include <cstddef>

#include "cpu_device/options.h"  // kAsan

// Of <sanitizer/asan_interface.h>, which not every compiler's package has.
extern "C" {
void __asan_poison_memory_region(const volatile void* begin, size_t bytes);
void __asan_unpoison_memory_region(const volatile void* begin, size_t bytes);
void* __asan_get_report_address();
void __sanitizer_start_switch_fiber(void** left_fake_stack, const void* bottom, size_t bytes);
void __sanitizer_finish_switch_fiber(void* own_fake_stack, const void** left_bottom,
                                     size_t* left_bytes);
}
