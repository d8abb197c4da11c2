#include "base/check.hpp"

#include <cstdio>
#include <cstdlib>

#include "base/log_writer.hpp"

namespace pollcore {

void check_failed(const char* condition, const char* what, const char* file, int line) noexcept {
    (void)flush_log(LogWriter::kPatience);
    std::fprintf(stderr, "pollcore: %s:%d: %s (%s does not hold)\n", file, line, what, condition);
    std::abort();
}

}  // namespace pollcore
