// How pollcored ends. Documented in its --help; scripts and the service manager rely on the numbers.
#pragma once

namespace pollcore::daemon {

enum ExitCode : int {
    kExitOk = 0,        ///< stopped as asked, everything taken was answered; with --check: accepted
    kExitFailed = 1,    ///< it could not start, or a service broke down
    kExitUsage = 2,     ///< wrong command line or configuration; with --check: the file is refused
    kExitCutShort = 3,  ///< stopped as asked, but before all work in flight was done
};

}  // namespace pollcore::daemon
