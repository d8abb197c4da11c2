// What a thread of this process does inside the kernel (proc_pid_syscall(5), proc_pid_wchan(5)).
//
// Thread safety: any thread. The function reads files of /proc and waits for nothing else.
#pragma once

#include <string>

namespace pollcore {

/// Returns "in the system call ioctl (16), in the kernel's ib_uverbs_ioctl", "outside of system calls", "while it runs
/// on a core", or why the place is not known.
[[nodiscard]] std::string kernel_place(int thread_id);

}  // namespace pollcore
