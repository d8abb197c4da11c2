#pragma once

namespace pollcore::perf {

enum ExitCode { kExitOk = 0, kExitFailed = 1, kExitUsage = 2, kExitMissed = 3 };

}  // namespace pollcore::perf
