#include "base/check.hpp"

#include <cstdlib>

#include "base/log.hpp"
#include "base/log_writer.hpp"

namespace pollcore {

void check_failed(const char* condition, const char* what, const char* file, int line) noexcept {
    log_error("{}:{}: {} ({} does not hold)", file, line, what, condition);
    (void)flush_log(LogWriter::kPatience);
    std::abort();
}

}  // namespace pollcore
