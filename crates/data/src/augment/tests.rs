use super::*;

const WIDTH: usize = 7;

/// Makes an image of 7 × 6 pixels.
fn image() -> Vec<u8> {
    let value =
        |c: usize, y: usize, x: usize| ((x * 37 + y * 91 + c * 53 + x * y * 11) % 200 + 20) as u8;
    let rows = (0..3).flat_map(|c| (0..6).map(move |y| (c, y)));
    rows.flat_map(|(c, y)| (0..WIDTH).map(move |x| value(c, y, x)))
        .collect()
}

/// The green plane of [`image`] after each operation at half strength, computed by Pillow 12: `ImageOps`,
/// `ImageEnhance`, and `Image.transform` with bilinear interpolation and the colour (124, 116, 104) outside the image.
#[rustfmt::skip]
const BY_PILLOW: [(Operation, [u8; 42]); 15] = [
    (AutoContrast, [68, 117, 165, 213, 1, 49, 97, 187, 249, 52, 114, 176, 239, 41, 45, 122, 199, 15, 92, 169, 245, 163, 255, 85, 176, 7, 98, 189, 22, 127, 232, 78, 183, 28, 134, 140, 0, 119, 239, 98, 218, 78]),
    (Equalize, [73, 110, 147, 184, 21, 58, 95, 164, 212, 60, 108, 156, 204, 52, 55, 114, 173, 32, 91, 150, 209, 146, 216, 86, 156, 26, 96, 166, 37, 118, 199, 80, 161, 42, 123, 128, 20, 112, 204, 96, 188, 80]),
    (Invert, [182, 145, 108, 71, 234, 197, 160, 91, 43, 195, 147, 99, 51, 203, 200, 141, 82, 223, 164, 105, 46, 109, 39, 169, 99, 229, 159, 89, 218, 137, 56, 175, 94, 213, 132, 127, 235, 143, 51, 159, 67, 175]),
    (Posterize, [64, 64, 128, 128, 0, 0, 64, 128, 192, 0, 64, 128, 192, 0, 0, 64, 128, 0, 64, 128, 192, 128, 192, 64, 128, 0, 64, 128, 0, 64, 192, 64, 128, 0, 64, 128, 0, 64, 192, 64, 128, 64]),
    (Solarize, [73, 110, 108, 71, 21, 58, 95, 91, 43, 60, 108, 99, 51, 52, 55, 114, 82, 32, 91, 105, 46, 109, 39, 86, 99, 26, 96, 89, 37, 118, 56, 80, 94, 42, 123, 127, 20, 112, 51, 96, 67, 80]),
    (SolarizeAdd, [128, 165, 147, 184, 76, 113, 150, 164, 212, 115, 163, 156, 204, 107, 110, 169, 173, 87, 146, 150, 209, 146, 216, 141, 156, 81, 151, 166, 92, 173, 199, 135, 161, 97, 178, 128, 75, 167, 204, 151, 188, 135]),
    (Color, [77, 114, 151, 198, 0, 35, 99, 168, 226, 37, 112, 160, 218, 29, 32, 118, 187, 9, 95, 154, 223, 150, 230, 90, 160, 3, 100, 170, 14, 122, 213, 84, 165, 19, 127, 132, 0, 116, 218, 100, 202, 84]),
    (Contrast, [53, 106, 160, 214, 0, 31, 85, 185, 254, 34, 103, 173, 243, 22, 27, 112, 198, 0, 79, 164, 250, 159, 255, 72, 173, 0, 86, 188, 1, 118, 235, 63, 180, 8, 125, 132, 0, 109, 243, 86, 219, 63]),
    (Brightness, [105, 159, 213, 255, 30, 84, 137, 237, 255, 87, 156, 226, 255, 75, 79, 165, 250, 46, 131, 217, 255, 211, 255, 124, 226, 37, 139, 240, 53, 171, 255, 116, 233, 60, 178, 185, 29, 162, 255, 139, 255, 116]),
    (Sharpness, [73, 110, 147, 184, 21, 58, 95, 164, 239, 39, 108, 169, 231, 52, 55, 107, 186, 11, 84, 156, 209, 146, 243, 72, 169, 5, 89, 166, 37, 118, 219, 66, 174, 21, 123, 128, 20, 112, 204, 96, 188, 80]),
    (Rotate, [116, 146, 134, 152, 132, 31, 116, 73, 138, 125, 89, 126, 116, 90, 127, 164, 148, 51, 97, 166, 113, 81, 162, 117, 137, 50, 128, 200, 75, 111, 149, 111, 97, 96, 158, 116, 85, 174, 133, 130, 103, 116]),
    (ShearX, [75, 112, 149, 171, 23, 60, 95, 174, 177, 70, 118, 166, 169, 52, 77, 136, 120, 54, 113, 172, 209, 182, 147, 122, 87, 62, 132, 116, 91, 172, 118, 134, 80, 96, 116, 38, 95, 187, 114, 171, 98, 116]),
    (ShearY, [79, 132, 114, 144, 112, 178, 53, 155, 189, 102, 68, 112, 159, 205, 61, 136, 140, 97, 47, 105, 167, 137, 193, 128, 116, 117, 51, 124, 43, 95, 166, 145, 117, 162, 81, 128, 20, 112, 116, 116, 116, 116]),
    (TranslateX, [131, 168, 90, 42, 79, 116, 116, 124, 87, 135, 183, 116, 116, 116, 147, 91, 65, 124, 183, 116, 116, 141, 126, 81, 66, 136, 116, 116, 164, 130, 126, 92, 88, 116, 116, 72, 164, 141, 148, 125, 116, 116]),
    (TranslateY, [125, 177, 99, 81, 133, 185, 106, 86, 149, 142, 75, 68, 131, 193, 107, 181, 125, 129, 73, 77, 150, 68, 83, 168, 123, 138, 93, 107, 128, 20, 112, 204, 96, 188, 80, 116, 116, 116, 116, 116, 116, 116]),
];

#[test]
fn every_operation_is_that_of_pillow() {
    for (operation, expected) in BY_PILLOW {
        let mut planes = image();
        operation.apply(&mut planes, WIDTH, 0.5, 1.0);
        // Pillow interpolates with a different precision.
        let most = planes[42..84]
            .iter()
            .zip(expected)
            .map(|(a, b)| a.abs_diff(b))
            .max();
        assert!(most <= Some(1), "{operation:?} {:?}", &planes[42..84]);
    }
    // A larger image, because the values of a few pixels cannot be made equally frequent.
    let mut planes: Vec<u8> = (0..3 * 768)
        .map(|i| {
            (((i % 32) * 3 + (i / 32 % 24) * 5 + (i / 768) * 7 + (i % 32) * (i / 32 % 24)) % 90
                + 40) as u8
        })
        .collect();
    Equalize.apply(&mut planes, 32, 0.5, 1.0);
    let expected = [
        118, 146, 174, 205, 229, 5, 35, 58, 91, 118, 146, 174, 205, 229, 5, 35, 58, 91,
    ];
    assert_eq!(planes[768 + 7 * 32..][..18], expected);
}

#[test]
fn no_strength_changes_next_to_nothing() {
    for operation in ALL {
        let mut planes = image();
        operation.apply(&mut planes, WIDTH, 0.0, -1.0);
        match operation {
            AutoContrast | Equalize | Invert | Posterize => {}
            _ => assert_eq!(planes, image(), "{operation:?}"),
        }
    }
    let mut grey = vec![7; 126];
    AutoContrast.apply(&mut grey, WIDTH, 1.0, 1.0);
    assert_eq!(grey, [7; 126]);
    // Images of one row, column or pixel.
    for (width, planes) in [(4, 12), (1, 12), (1, 3)] {
        for operation in ALL {
            let mut planes = vec![100; planes];
            operation.apply(&mut planes, width, 1.0, 1.0);
        }
    }
}

#[test]
fn half_of_the_operations_that_are_drawn_are_made() {
    let augment = RandAugment {
        operations: 1,
        magnitude: 9.0,
        deviation: 0.5,
    };
    let mut changed = 0;
    for i in 0..1000 {
        let mut planes = image();
        augment.apply(
            &mut planes,
            WIDTH,
            &mut RandomNumbers::new("a test", i, 0, 0),
        );
        changed += usize::from(planes != image());
    }
    // Equalize does not change this image.
    assert!((420..520).contains(&changed), "{changed}");
}

#[test]
fn a_rectangle_of_an_allowed_size_is_erased() {
    let mut areas = Vec::new();
    for i in 0..500 {
        let mut planes = vec![1.0; 3 * 40 * 50];
        erase(&mut planes, 50, &mut RandomNumbers::new("a test", i, 0, 0));
        let erased = |plane: &[f32]| plane.iter().filter(|x| **x == 0.0).count();
        assert_eq!(erased(&planes[..2000]), erased(&planes[4000..]));
        areas.push(erased(&planes[..2000]) as f64 / 2000.0);
    }
    let (least, most) = (
        areas.iter().copied().fold(1.0, f64::min),
        areas.iter().copied().fold(0.0, f64::max),
    );
    assert!(
        (0.015..0.03).contains(&least) && (0.31..0.35).contains(&most),
        "{least} {most}"
    );
}

#[test]
fn cutmix_swaps_a_rectangle_and_counts_its_area() {
    let size = [3, 4, 6];
    let own: Vec<f32> = [1.0, 2.0, 3.0].iter().flat_map(|x| [*x; 72]).collect();
    for i in 0..200 {
        let mut values = own.clone();
        let mixing = Mixing::draw(0.0, 1.0, [4, 6], &mut RandomNumbers::new("a test", i, 0, 0));
        let share = mixing.apply(&mut values, size);
        let kept = |i: usize, x: f32| {
            values[72 * i..72 * (i + 1)]
                .iter()
                .filter(|y| **y == x)
                .count()
        };
        assert_eq!(
            (kept(0, 1.0), kept(2, 3.0), kept(1, 2.0)),
            (kept(2, 3.0), kept(0, 1.0), 72)
        );
        assert_eq!(kept(0, 1.0) + kept(0, 3.0), 72);
        assert!((share - kept(0, 1.0) as f64 / 72.0).abs() < 1e-9);
    }
}

#[test]
fn shares_have_the_mean_and_the_variance_of_beta() {
    for alpha in [0.2, 0.8, 1.0, 3.0] {
        let mut draws = RandomNumbers::new("a test", 1, 2, 3);
        let shares: Vec<f64> = (0..4000).map(|_| draws.beta(alpha)).collect();
        let mean = shares.iter().sum::<f64>() / 4000.0;
        let variance = shares.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 4000.0;
        let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
        assert!(
            (mean - 0.5).abs() < 0.03 && (variance / expected - 1.0).abs() < 0.1,
            "{alpha} {mean} {variance}"
        );
    }
    let mut draws = RandomNumbers::new("a test", 1, 2, 3);
    let normal: Vec<f64> = (0..4000).map(|_| draws.normal()).collect();
    let mean = normal.iter().sum::<f64>() / 4000.0;
    let variance = normal.iter().map(|x| x * x).sum::<f64>() / 4000.0;
    assert!(
        mean.abs() < 0.06 && (variance - 1.0).abs() < 0.1,
        "{mean} {variance}"
    );
}
