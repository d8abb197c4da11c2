// The exit codes of pollcored. --help documents them. Scripts and the service manager rely on the numbers.
#pragma once

namespace pollcore::daemon {

enum ExitCode : int {
    kExitOk = 0,        ///< stopped by a signal, after all accepted work was done; with --check: the file is accepted
    kExitFailed = 1,    ///< the daemon could not start, or a service broke down
    kExitUsage = 2,     ///< wrong command line or configuration; with --check: the file is refused
    kExitCutShort = 3,  ///< stopped by a signal, before all work in flight was done
};

}  // namespace pollcore::daemon
