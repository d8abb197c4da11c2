// Tests which calls go to the model, and that others go to the C library.
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include <gtest/gtest.h>

#include "device_files.hpp"
#include "file.hpp"
#include "hca_fabric.hpp"

namespace mlx5_model {
namespace {

class Talking : public File {
public:
    void describe(struct stat& out) const override { out.st_rdev = makedev(7, 8); }
    long ioctl(unsigned long request, void*) override { return request == 5 ? 55 : -ENOTTY; }
    long read(void* to, std::size_t) override { return *static_cast<char*>(to) = 'r', 1; }
    long write(const void*, std::size_t size) override { return size == 3 ? 3 : -EMSGSIZE; }
    void closed() override { ++closes; }
    int closes = 0;
};

TEST(Interposed, CallsOnAnAttachedDescriptorAreItsFiles) {
    const auto file = std::make_shared<Talking>();
    const int descriptor = ::open("/dev/null", O_RDWR);
    ASSERT_GE(descriptor, 0);
    char byte = 0;
    EXPECT_EQ(::read(descriptor, &byte, 1), 0) << "/dev/null's own";
    attach(descriptor, file);
    EXPECT_EQ(attached(descriptor), file);
    EXPECT_EQ(::read(descriptor, &byte, 1), 1);
    EXPECT_EQ(byte, 'r');
    EXPECT_EQ(::write(descriptor, "abc", 3), 3);
    EXPECT_EQ(::write(descriptor, "abcd", 4), -1);
    EXPECT_EQ(errno, EMSGSIZE);
    EXPECT_EQ(::ioctl(descriptor, 5, nullptr), 55);
    EXPECT_EQ(::ioctl(descriptor, 6, nullptr), -1);
    EXPECT_EQ(errno, ENOTTY);
    struct stat about {};
    ASSERT_EQ(::fstat(descriptor, &about), 0);
    EXPECT_EQ(about.st_rdev, makedev(7, 8));
    EXPECT_EQ(::close(descriptor), 0);
    EXPECT_EQ(file->closes, 1);
    EXPECT_EQ(attached(descriptor), nullptr);
    EXPECT_EQ(::close(descriptor), -1) << "it is closed in truth";
}

TEST(Interposed, AFileRefusesWhatItDoesNotKnow) {
    const int descriptor = ::open("/dev/null", O_RDWR);
    attach(descriptor, std::make_shared<File>());
    char byte = 0;
    EXPECT_EQ(::read(descriptor, &byte, 1), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(::write(descriptor, &byte, 1), -1);
    EXPECT_EQ(::ioctl(descriptor, 1, nullptr), -1);
    EXPECT_EQ(errno, ENOTTY);
    EXPECT_EQ(::close(descriptor), 0);
}

TEST(Interposed, OtherDescriptorsGoOn) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    char byte = 0;
    EXPECT_EQ(::write(ends[1], "x", 1), 1);
    int waiting = 0;
    EXPECT_EQ(::ioctl(ends[0], FIONREAD, &waiting), 0);
    EXPECT_EQ(waiting, 1);
    EXPECT_EQ(::read(ends[0], &byte, 1), 1);
    EXPECT_EQ(byte, 'x');
    struct stat about {};
    EXPECT_EQ(::fstat(ends[0], &about), 0);
    EXPECT_TRUE(S_ISFIFO(about.st_mode));
    EXPECT_EQ(::close(ends[0]), 0);
    EXPECT_EQ(::close(ends[1]), 0);
    EXPECT_EQ(attached(-1), nullptr);
    EXPECT_EQ(attached(1 << 20), nullptr);
}

TEST(Interposed, DeviceFilesAreThere) {
    for (const DeviceFacts& device : devices()) {
        struct stat about {};
        ASSERT_EQ(::stat(device.file.c_str(), &about), 0);
        EXPECT_TRUE(S_ISCHR(about.st_mode));
        EXPECT_EQ(about.st_rdev, makedev(231, device.minor));
    }
    EXPECT_EQ(device_file("/dev/infiniband/rdma_cm"), makedev(10, 58));
    const int descriptor = ::open(devices()[0].file.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(descriptor, 0);
    EXPECT_NE(attached(descriptor), nullptr);
    struct stat about {};
    EXPECT_EQ(::fstat(descriptor, &about), 0);
    EXPECT_EQ(about.st_rdev, makedev(231, devices()[0].minor));
    EXPECT_EQ(::ioctl(descriptor, FIONREAD, &about), -1);
    EXPECT_EQ(errno, ENOTTY);
    EXPECT_EQ(::close(descriptor), 0);
}

TEST(Interposed, OtherFilesAreTheKernels) {
    struct stat about {};
    EXPECT_EQ(::stat("/dev/infiniband/uverbs99", &about), -1);
    EXPECT_EQ(::open("/dev/infiniband/uverbs99", O_RDWR), -1);
    EXPECT_EQ(errno, ENOENT);
    EXPECT_EQ(::stat("/dev/null", &about), 0);
    EXPECT_FALSE(device_file("/dev/null"));
    EXPECT_FALSE(device_file(nullptr));
    EXPECT_FALSE(open_device_file("/dev/infiniband"));
    const std::string made = testing::TempDir() + "mlx5_model_interpose";
    const int file = ::open(made.c_str(), O_CREAT | O_EXCL | O_RDWR, 0640);
    ASSERT_GE(file, 0);
    ASSERT_EQ(::fstat(file, &about), 0);
    EXPECT_EQ(about.st_mode & 0777 & ~0640u, 0u) << "the mode is passed on";
    EXPECT_EQ(about.st_mode & 0600, 0600u);
    ::close(file);
    ::unlink(made.c_str());
}

}  // namespace
}  // namespace mlx5_model
